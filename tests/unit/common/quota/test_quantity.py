from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.quota.quantity import MAX_LENGTH, UNIT, Format, QuantityError, canonical, parse, parse_with_format, render

GOLDEN = Path(__file__).parents[2] / "data" / "quantity_golden.tsv"
ERROR = ["error"]

# Where we keep what Kubernetes caps, loses or reads into a text (see common/quota/quantity.py).
DEVIATIONS = {
    "8Ei": ["BinarySI", "8Ei", f"{2**63 * UNIT}"],
    "16Ei": ["BinarySI", "16Ei", f"{2**64 * UNIT}"],
    "9223372036854775807Ki": ["BinarySI", "9223372036854775807Ki", f"{(2**63 - 1) * 1024 * UNIT}"],
    "1000E": ["DecimalSI", "1000E", f"{10**21 * UNIT}"],
    "1000000000000000000000": ["DecimalSI", "1000E", f"{10**21 * UNIT}"],
    "-5000E": ["DecimalSI", "-5000E", f"{-5 * 10**21 * UNIT}"],
    **dict.fromkeys(["1e36", "1e100", "-1e-100"], ERROR),
    **dict.fromkeys(["+", "-", ".", "-.", "Ki", "m", "E", "e3", ".Gi"], ERROR),
}


def kubernetes() -> dict[str, list[str]]:
    """What Kubernetes makes of each text: "error", or format, canonical text and nanos (data/quantity_golden.go)."""
    rows = (line.split("\t") for line in GOLDEN.read_text(encoding="utf-8").splitlines())
    return {json.loads(text): outcome for text, *outcome in rows}


def ours(text: str) -> list[str]:
    try:
        nanos, format = parse_with_format(text)
    except QuantityError:
        return ERROR
    return [format.value, canonical(text), str(nanos)]


def test_every_text_means_and_prints_what_it_does_in_kubernetes() -> None:
    golden = kubernetes()
    assert len(golden) > 1500
    differences = {text: (ours(text), theirs) for text, theirs in golden.items() if ours(text) != theirs}
    assert differences.keys() == DEVIATIONS.keys()


@pytest.mark.parametrize("text", DEVIATIONS)
def test_what_kubernetes_loses_or_guesses_is_kept_or_refused(text: str) -> None:
    assert ours(text) == DEVIATIONS[text]


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(0, "0"), (64, "64"), (-3, "-3"), (1500, "1500"), (2000, "2k"), (10**35, "100000000000000000E")],
)
def test_integers_are_amounts(amount: int, expected: str) -> None:
    assert parse(amount) == amount * UNIT
    assert canonical(amount) == expected


@pytest.mark.parametrize("value", [True, False, 1.0, 1.5, None, [], {}, b"1"])
def test_other_types_are_refused_also_after_an_equal_integer_was_parsed(value: object) -> None:
    assert parse(1) == UNIT
    with pytest.raises(QuantityError, match="must be a string or an integer"):
        parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["64x", "", "1 Gi", "1\n", "\uff11"])
def test_an_error_names_the_text_and_says_what_to_write(text: str) -> None:
    with pytest.raises(QuantityError) as error:
        parse(text)
    assert str(error.value) == (
        f"{text!r} is not a quantity: write a number with an optional suffix, such as 4, 500m, 16Gi, 64G or 2e3"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("9" * 10_000, "longer than 64 characters"),
        ("9" * (MAX_LENGTH + 1), "longer than 64 characters"),
        ("9" * MAX_LENGTH, "too large"),
        ("1e" + "9" * 50, "exponent is beyond 99"),
        pytest.param(10**5000, "too large", id="5000 digits"),
        (10**36, "too large"),
    ],
)
def test_absurd_amounts_are_refused_with_a_short_message(value: str | int, reason: str) -> None:
    with pytest.raises(QuantityError, match=reason) as error:
        parse(value)
    assert len(str(error.value)) < 160


@pytest.mark.parametrize(
    ("nanos", "format", "expected"),
    [
        (64 * 1024**3 * UNIT, Format.BINARY_SI, "64Gi"),
        (64 * 10**9 * UNIT, Format.BINARY_SI, "62500000Ki"),
        (64 * 10**9 * UNIT, Format.DECIMAL_SI, "64G"),
        (1000 * UNIT, Format.BINARY_SI, "1k"),
        (2048 * UNIT + 1, Format.BINARY_SI, "2048000000001n"),
        (1, Format.DECIMAL_SI, "1n"),
        (-1_500_000_000, Format.DECIMAL_SI, "-1500m"),
        (12_000 * UNIT, Format.DECIMAL_EXPONENT, "12e3"),
        (UNIT // 2, Format.DECIMAL_EXPONENT, "500e-3"),
        (2**70 * 1024 * UNIT, Format.BINARY_SI, "1048576Ei"),
    ],
)
def test_an_amount_is_printed_with_the_largest_suffix_that_loses_nothing(
    nanos: int, format: Format, expected: str
) -> None:
    assert render(nanos, format) == expected
