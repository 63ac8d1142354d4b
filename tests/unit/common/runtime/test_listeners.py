"""Functions that are called when something happens."""

from __future__ import annotations

from common.runtime.listeners import Listeners


def test_listeners_are_called_in_order_until_they_are_removed() -> None:
    listeners: Listeners[[str]] = Listeners()
    called: list[str] = []
    first = listeners.add(lambda what: called.append(f"first {what}"))
    listeners.add(lambda what: called.append(f"second {what}"))
    listeners.call("a")
    first()
    listeners.call("b")
    assert called == ["first a", "second a", "second b"]


def test_a_listener_may_remove_itself_while_it_is_called() -> None:
    listeners: Listeners[[]] = Listeners()
    called: list[str] = []

    def once() -> None:
        called.append("once")
        remove()

    remove = listeners.add(once)
    listeners.add(lambda: called.append("each time"))
    listeners.call()
    listeners.call()
    assert called == ["once", "each time", "each time"]


def test_one_that_raises_keeps_no_other_from_being_called() -> None:
    called: list[str] = []

    def fails(_what: str) -> None:
        raise UnicodeDecodeError("utf-8", b"\xda", 0, 1, "invalid")

    listeners: Listeners[[str]] = Listeners()
    listeners.add(fails)
    listeners.add(called.append)
    listeners.call("change")
    assert called == ["change"]
