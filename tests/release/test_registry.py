"""Kinds of release are found by convention, and a new one needs no other change."""

import subprocess
import sys
from dataclasses import fields, replace

import pytest

from canal.errors import ReleaseError
from canal.lazy import Deferred
from canal.release.registry import kind_of, kinds, of_kind, register
from release.folders import write_folder


def test_every_folder_with_a_module_kind_is_found():
    assert list(kinds()) == ["features", "adapters", "statistics"]
    assert all(kind_of(name).name == name for name in kinds())


def test_what_a_kind_refers_to_is_there():
    """References are strings until they are called; a name that moved would be found late."""
    for kind in kinds().values():
        found = [getattr(kind, field.name) for field in fields(kind)]
        assert all(callable(each.function) for each in found if isinstance(each, Deferred))


def test_looking_for_kinds_loads_nothing_heavy():
    code = (
        "import sys; from canal.release.registry import kinds; kinds();"
        "assert not {'torch', 'scipy', 'typer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_kind_of_somebody_else(monkeypatch):
    with pytest.raises(
        ReleaseError, match=r"'other' is unknown here; .* features, adapters, statistics"
    ):
        kind_of("other")
    monkeypatch.setitem(kinds(), "other", None)  # taken out again afterwards
    register(replace(kinds()["features"], name="other"))
    assert kind_of("other").name == "other"


def test_a_table_that_does_not_know_a_kind_says_so(tmp_path):
    release = write_folder(tmp_path / "release")
    assert of_kind({"features": 1, "adapters": 2}, release, "page") == 1
    with pytest.raises(ReleaseError, match="of features, which has no page; pages are for adapter"):
        of_kind({"adapters": 2}, release, "page")
