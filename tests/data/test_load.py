"""A folder as arrays: whole, in parts, with the people who are on the images."""

import numpy as np
import pytest

from canal.data.case import stem
from canal.data.load import load
from canal.data.readers import read
from canal.data.split import Split, make_split
from canal.data.synthetic import write
from canal.errors import DataError
from canal.features.queries import Queries


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data", 30, size=(32, 32))
    cases = read(tmp_path / "data").cases
    make_split(cases, recipient=8, partition="site").write(tmp_path / "split.json")
    return tmp_path


def test_parts_are_rows_of_the_whole(folder):
    whole = load(folder / "data", size=32)
    test, pooled = (
        load(folder / "data", size=32, split=folder / "split.json", part=part)
        for part in ("test", "pooled")
    )
    assert sorted((*test.ids, *pooled.ids)) == sorted(whole.ids)
    for part in (test, pooled):
        same = whole.rows(part.ids)
        assert np.array_equal(part.images, same.images)
        assert np.array_equal(part.masks, same.masks)
        assert part.patients == same.patients


def test_who_is_on_the_images_is_not_forgotten(folder):
    """Two images of one person count as two: the groups come from the folder by themselves."""
    cases = read(folder / "data").cases
    people = [case.patient for case in cases]
    most = max(people.count(person) for person in people)
    assert most > 1
    assert Queries.of(load(folder / "data", size=32)).images_per_person == most


def test_two_files_of_one_name_are_refused(folder):
    """Else somebody who joins could take another's place, and change what that one adds."""
    image = sorted((folder / "data" / "endoscopy" / "images").iterdir())[0]
    image.with_suffix(".jpg").write_bytes(image.read_bytes())
    with pytest.raises(DataError, match=r"has the same id as .* remove one of the two"):
        load(folder / "data", size=32)


def test_a_person_in_two_parts_is_refused(folder):
    """Records that were mended after the split was made: who is at two sites would pay for one."""
    table = folder / "data" / "endoscopy" / "metadata.csv"
    header, *rows = table.read_text().splitlines()
    split = Split.read(folder / "split.json")
    names = {name.removeprefix("endoscopy/") for name in split.cohorts["endoscopy"]}
    ours = next(row for row in rows if stem(row.split(",")[0]) in names)
    person = ours.split(",")[header.split(",").index("patient_id")]
    others = [*split.test, *split.recipient]
    other = next(n for n in others if n.startswith("endoscopy/")).removeprefix("endoscopy/")
    columns = header.split(",")

    def mended(row):
        values = dict(zip(columns, row.split(","), strict=True))
        if stem(values[columns[0]]) == other:
            values["patient_id"] = person
        return ",".join(values.values())

    load(folder / "data", size=32, split=folder / "split.json")
    table.write_text("\n".join([header, *map(mended, rows)]) + "\n")
    with pytest.raises(DataError, match=f"{person} is in two parts of the split"):
        load(folder / "data", size=32, split=folder / "split.json")


def test_images_without_a_mask_are_taken_when_asked_for(folder):
    for mask in sorted((folder / "data" / "endoscopy" / "masks").iterdir())[:2]:
        mask.unlink()
    taken = load(folder / "data", size=32, unlabelled=True)
    assert len(taken.unlabelled) == 2
    assert taken.labelled.sum() == len(taken.ids) - 2
