"""A MONAI datalist: groups and hospitals from its entries, and entries that do not hold."""

import numpy as np
import pytest

from canal.data.decode import decode_mask
from canal.data.load import load
from canal.data.readers import read
from canal.errors import DataError
from canal.gradients.patients import Patients


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
    assert [case.patient for case in data.cases] == ["patient 1", "patient 1", "patient 2"]
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


@pytest.mark.parametrize("key", ["patient", "patient_id", "PatientID", "subject_id", "lesion"])
def test_a_person_is_known_by_whatever_a_table_may_call_one(folder, key):
    _listed(folder, {"a": {key: 1}, "b": {key: 1}, "c": {key: 2}})
    cases = read(folder.root / "list.json").cases
    assert [case.patient for case in cases] == ["patient 1", "patient 1", "patient 2"]


@pytest.mark.parametrize("nobody", [{}, {"patient": None}, {"patient": " "}])
def test_where_nobody_is_known_everybody_is_somebody_else(folder, nobody, monkeypatch):
    monkeypatch.setenv("CANAL_CACHE", str(folder.root / "cache"))
    _listed(folder, {"7": nobody, "x": nobody})
    assert len(Patients("here", load(folder.root / "list.json", size=32))) == 2


def test_a_list_that_knows_only_some_people_is_refused(folder):
    """Whoever it does not know may be one of them, under two names."""
    _listed(folder, {"7": {"patient": None}, "x": {"patient": "7"}})
    data = read(folder.root / "list.json")
    with pytest.raises(
        DataError, match=r"gives no patient for 1 images \(7, …\); name the patient"
    ):
        data.check()


def _listed(folder, people):
    """A datalist of images, with what is known of each."""
    for name in people:
        folder.pair(f"{name}.png", f"{name}_mask.png")
    entries = [
        {"image": f"{name}.png", "label": f"{name}_mask.png"} | known
        for name, known in people.items()
    ]
    folder.json("list.json", {"training": entries})


@pytest.mark.parametrize("content", ["not json", "[]", '{"training": null}'])
def test_another_json_is_no_datalist(folder, content):
    folder.at("list.json").write_text(content)
    with pytest.raises(DataError, match=r"list\.json is no MONAI datalist.*it should hold"):
        read(folder.root / "list.json")
