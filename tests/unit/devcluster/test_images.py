"""The layer of packages that is kept is that of the environment which it is made from."""

from __future__ import annotations

import importlib.metadata

import pytest

from devcluster import images


def test_where_a_package_of_the_lock_is_missing_or_another_version_another_layer_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An environment that is behind the lock must not leave its layer to one that has all."""
    whole, found = images.base_key(), importlib.metadata.version
    assert images.base_key() == whole

    def missing(name: str) -> str:
        if name == "msgspec":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    without = images.base_key()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0" if name == "msgspec" else found(name))
    assert len({whole, without, images.base_key()}) == 3
