"""The examples of docs/providers.md cost what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from common import resources
from seed.machines.footprint import evaluate
from seed.machines.machine_controller import Machine
from seed.providers import PROVIDERS
from seed.providers.flavour import Lookup
from tests.unit.provider_flavours import FLAVOURS

PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
EXAMPLES = re.findall(r"^### (\S+)\n.*?^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("provider", "costs", "example"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_the_example_of_each_provider_costs_what_the_page_says(provider: str, costs: str, example: str) -> None:
    machine = msgspec.json.decode(msgspec.json.encode(yaml.safe_load(example)), type=Machine)
    size = evaluate(machine)
    if isinstance(size, Lookup):
        size = size.complete(FLAVOURS[provider])
    assert size.provider == provider
    assert resources.text(size.resources) == costs
    assert size.unknown == {}


def test_the_page_has_a_row_and_an_example_of_every_provider() -> None:
    assert sorted(example[0] for example in EXAMPLES) == sorted(PROVIDERS)
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == sorted(PROVIDERS)
