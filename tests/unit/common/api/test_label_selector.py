"""Selectors pick what Kubernetes' own pick."""

from __future__ import annotations

import msgspec
import pytest

from common.api import label_selector
from common.api.label_selector import LabelRequirement, LabelSelector, matches


def selector(*expressions: tuple[str, ...], **match_labels: str) -> LabelSelector:
    found = [{"key": key, "operator": operator, "values": values} for key, operator, *values in expressions]
    return msgspec.convert({"matchLabels": match_labels, "matchExpressions": found}, LabelSelector)


@pytest.mark.parametrize(
    ("wanted", "labels", "expected"),
    [
        (selector(), {}, True),
        (selector(owner="ann"), {"owner": "ann", "tier": "dev"}, True),
        (selector(owner="ann"), {"owner": "bob"}, False),
        (selector(owner="ann"), {}, False),
        (selector(owner=""), {}, False),
        (selector(owner=""), {"owner": ""}, True),
        (selector(("owner", "In", "ann", "bob")), {"owner": "bob"}, True),
        (selector(("owner", "In", "ann", "bob")), {}, False),
        (selector(("owner", "In", "ann", "bob")), {"owner": "eve"}, False),
        (selector(("owner", "NotIn", "ann")), {"owner": "bob"}, True),
        (selector(("owner", "NotIn", "ann")), {"owner": "ann"}, False),
        (selector(("owner", "NotIn", "ann")), {}, True),
        (selector(("owner", "Exists")), {"owner": ""}, True),
        (selector(("owner", "Exists")), {}, False),
        (selector(("owner", "DoesNotExist")), {}, True),
        (selector(("owner", "DoesNotExist")), {"owner": ""}, False),
        (selector(("tier", "Exists"), owner="ann"), {"owner": "ann"}, False),
        (selector(("tier", "Exists"), ("tier", "NotIn", "dev")), {"tier": "prod"}, True),
        (selector(("tier", "Gt", "1")), {"tier": "2"}, False),
    ],
)
def test_a_selector_picks_what_meets_all_of_it(wanted: LabelSelector, labels: dict[str, str], expected: bool) -> None:
    assert matches(wanted, labels) is expected


def test_it_is_written_as_it_was_read() -> None:
    given = {
        "matchLabels": {"owner": "ann"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["prod"]}, {"key": "x", "operator": "Exists"}],
    }
    assert msgspec.to_builtins(msgspec.convert(given, LabelSelector)) == {
        **given,
        "matchExpressions": (
            {"key": "tier", "operator": "In", "values": ("prod",)},
            {"key": "x", "operator": "Exists"},
        ),
    }


def test_a_selector_is_shown_as_kubectl_takes_it() -> None:
    expressions = (
        LabelRequirement("tier", "In", ("web", "db")),
        LabelRequirement("stage", "NotIn", ("test",)),
        LabelRequirement("owner", "Exists"),
        LabelRequirement("legacy", "DoesNotExist"),
    )
    selector = LabelSelector(match_labels={"b": "2", "a": ""}, match_expressions=expressions)
    assert label_selector.text(selector) == "a=,b=2,tier in (web,db),stage notin (test),owner,!legacy"
