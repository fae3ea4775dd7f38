"""Importance files of every kind, and clear words for the wrong ones."""

import json

import numpy as np
import pytest

from canal.errors import InvalidValueError
from canal.features.forecast import read_importance


@pytest.mark.parametrize("name", ["scores.json", "scores.npy", "scores.csv", "scores.txt"])
def test_every_kind(tmp_path, name):
    path = tmp_path / name
    if name.endswith("json"):
        path.write_text(json.dumps([1, 2.5, 3]))
    elif name.endswith("npy"):
        np.save(path, np.array([1, 2.5, 3]))
    else:
        path.write_text("1, 2.5\n3")
    assert read_importance(path).tolist() == [1, 2.5, 3]


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{"), ("a.json", '{"a": 1}'), ("a.txt", "x y"), ("a.npy", "junk")]
)
def test_junk_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidValueError, match=name):
        read_importance(tmp_path / name)


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "a.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(InvalidValueError, match=r"a\.npy"):
        read_importance(tmp_path / "a.npy")


def test_absent(tmp_path):
    with pytest.raises(InvalidValueError, match="No such file"):
        read_importance(tmp_path / "absent.json")
