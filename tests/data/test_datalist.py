"""A MONAI datalist: groups and hospitals from its entries, and entries that do not hold."""

import numpy as np
import pytest

from canal.adapters.patients import Patients
from canal.data.decode import decode_mask
from canal.data.load import load
from canal.data.readers import read
from canal.errors import DataError


def _ids(data):
    return [case.id for case in data.cases]


def test_a_datalist(folder):
    for name in "abc":
        folder.pair(f"pictures/{name}.png", f"truth/{name}.png")
    entries = [
        {"image": f"pictures/{name}.png", "label": f"truth/{name}.png", "patient": who}
        for name, who in (("a", 1), ("b", 1), ("c", 2))
    ]
    entries[2]["site"] = "oslo"
    folder.json(
        "list.json",
        {"training": entries[:2], "validation": entries[2:], "test": ["pictures/d.png"]},
    )
    data = read(folder.root / "list.json")
    assert data.layout == "MONAI datalist"
    assert _ids(data) == ["pictures/a", "pictures/b", "pictures/c"]
    assert [case.group for case in data.cases] == ["patient 1", "patient 1", "patient 2"]
    assert [case.site for case in data.cases] == ["", "", "oslo"]
    assert data.problems == ()


def test_a_datalist_of_volumes_is_named_without_suffix(folder):
    folder.scan("a.nii.gz")
    folder.volume("a_seg.nii.gz", np.ones((8, 9, 10), np.uint8))
    folder.json("list.json", {"training": [{"image": ["./a.nii.gz"], "label": "a_seg.nii.gz"}]})
    data = read(folder.root / "list.json")
    assert (data.spatial_dims, _ids(data)) == (3, ["a"])
    assert decode_mask(data.cases[0], size=None).all()


def test_problems_in_a_datalist(folder):
    folder.pair("a.png", "a_mask.png")
    good = {"image": "a.png", "label": "a_mask.png"}
    gone = {"image": "a.png", "label": "gone.png"}
    folder.json("list.json", {"training": [good, {"image": "a.png"}, gone], "validation": [good]})
    data = read(folder.root / "list.json")
    assert _ids(data) == ["a"]
    lacking, missing, twice = data.problems
    assert (lacking.file, lacking.what) == ("list.json, entry 1", "lacks image or label")
    assert missing.file.endswith("gone.png")
    assert (twice.file, twice.remedy) == ("list.json, entry 3", "list every image once")


def test_an_image_of_nobody_known_joins_no_patient_of_its_name(folder, monkeypatch):
    monkeypatch.setenv("CANAL_CACHE", str(folder.root / "cache"))
    for name in ("7", "x"):
        folder.pair(f"{name}.png", f"{name}_mask.png")
    entries = [{"image": f"{name}.png", "label": f"{name}_mask.png"} for name in ("7", "x")]
    entries[1]["patient"] = "7"
    folder.json("list.json", {"training": entries})
    assert len(Patients("here", load(folder.root / "list.json", size=32))) == 2


@pytest.mark.parametrize("content", ["not json", "[]", '{"training": null}'])
def test_another_json_is_no_datalist(folder, content):
    folder.at("list.json").write_text(content)
    with pytest.raises(DataError, match=r"list\.json is no MONAI datalist.*it should hold"):
        read(folder.root / "list.json")
