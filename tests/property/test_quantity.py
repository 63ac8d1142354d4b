from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from common.quota import resources
from common.quota.quantity import MAX_LENGTH, UNIT, Format, QuantityError, canonical, parse, render

amounts = st.one_of(
    st.integers(-(10**36), 10**36),
    st.builds(lambda n, power: n << power, st.integers(-(10**6), 10**6), st.integers(0, 70)),
    st.builds(lambda n, power: n * 10**power, st.integers(-(10**6), 10**6), st.integers(0, 24)),
)
formats = st.sampled_from(Format)
scales = {
    **{suffix: Fraction(10) ** power for suffix, power in zip("num", (-9, -6, -3), strict=True)},
    **{suffix: Fraction(10) ** power for suffix, power in zip("kMGTPE", range(3, 19, 3), strict=True)},
    **{f"{prefix}i": Fraction(2) ** power for prefix, power in zip("KMGTPE", range(10, 61, 10), strict=True)},
    **{"": Fraction(1), "e2": Fraction(100), "E-4": Fraction(1, 10_000)},
}
numbers = st.from_regex(
    r"[+-]?([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12})", fullmatch=True, alphabet=st.characters(codec="ascii")
)
texts = st.tuples(numbers, st.sampled_from(list(scales)))
lists = st.dictionaries(st.sampled_from(["cpu", "memory", "storage", "nvidia.com/gpu"]), st.integers(-(10**30), 10**30))


def exact(number: str, suffix: str) -> Fraction:
    return Fraction(number) * scales[suffix] * UNIT


@given(amounts, formats)
def test_what_is_rendered_parses_to_the_same_amount(nanos: int, format: Format) -> None:
    assert parse(render(nanos, format)) == nanos


@given(texts)
def test_canonical_text_is_canonical_and_means_the_same(parts: tuple[str, str]) -> None:
    text = "".join(parts)
    assert canonical(canonical(text)) == canonical(text)
    assert parse(canonical(text)) == parse(text)


@given(texts)
def test_an_amount_is_exact_to_the_nano_and_rounds_away_from_zero(parts: tuple[str, str]) -> None:
    nanos, value = parse("".join(parts)), exact(*parts)
    assert abs(value) <= abs(nanos) < abs(value) + 1
    assert nanos * value >= 0


@given(texts, texts)
def test_order_is_preserved(a: tuple[str, str], b: tuple[str, str]) -> None:
    if exact(*a) <= exact(*b):
        assert parse("".join(a)) <= parse("".join(b))
    else:
        assert parse("".join(a)) >= parse("".join(b))


@given(amounts, amounts, formats, formats)
def test_amounts_add_up_through_their_texts(a: int, b: int, first: Format, second: Format) -> None:
    assert parse(render(a + b, first)) == parse(render(a, first)) + parse(render(b, second))


@given(st.text(max_size=80) | st.text("0123456789+-.eEinumkKMGTP", max_size=MAX_LENGTH))
def test_any_text_is_either_an_amount_or_a_quantity_error(text: str) -> None:
    try:
        nanos = parse(text)
    except QuantityError:
        return
    assert parse(canonical(text)) == nanos


@given(lists, lists)
def test_resource_lists_keep_their_sums(a: dict[str, int], b: dict[str, int]) -> None:
    both = resources.add(a, b)
    assert resources.parse(resources.render(both)) == both
    assert resources.total([a, b]) == both == resources.add(b, a)
    back = resources.subtract(both, b)
    assert back == {**dict.fromkeys(b, 0), **a}
    assert resources.add(resources.maximum(a, b), resources.minimum(a, b)) == both
    assert both.keys() == a.keys() | b.keys()


@given(lists, lists)
def test_short_is_empty_exactly_when_everything_needed_fits(need: dict[str, int], free: dict[str, int]) -> None:
    fits = all(amount <= 0 or name not in free or amount <= free[name] for name, amount in need.items())
    assert (resources.short(need, free) == {}) == fits
    topped_up = resources.only(resources.add(free, resources.short(need, free)), free)
    assert resources.short(need, topped_up) == {}
