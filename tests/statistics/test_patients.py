"""Patients of a site: read from a folder with images as they are, grouped as records say."""

import csv

import numpy as np
import pytest
from PIL import Image

from canal.data.readers import read
from canal.data.split import make_split
from canal.errors import DataError
from canal.privacy.lattice import Lattice
from canal.statistics.patients import Patients, load
from canal.statistics.plan import COUNT, NO_LABEL, NO_LESION, StatisticsPlan


def write(folder, name, image, mask=None):
    for part, pixels in (("images", image), ("masks", mask)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        if pixels is not None:
            Image.fromarray(pixels).save(folder / part / f"{name}.png")


def noise(shape, seed, top=256):
    return np.random.default_rng(seed).integers(0, top, shape, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Four images of three patients, of all sorts."""
    quarter = np.zeros((40, 100), np.uint8)
    quarter[:20, :50] = 255
    write(tmp_path, "a", noise((40, 100), 1), quarter)
    write(tmp_path, "b", noise((80, 60, 3), 2, 50), np.zeros((80, 60), np.uint8))
    write(tmp_path, "c", noise((300, 30), 3))
    write(tmp_path, "d", noise((16, 16), 4), np.full((16, 16), 255, np.uint8))
    with (tmp_path / "metadata.csv").open("w", newline="") as file:
        rows = [("image", "patient"), ("a", 1), ("b", 1), ("c", 2), ("d", 3)]
        csv.writer(file).writerows(rows)
    return tmp_path


def test_images_are_read_as_they_are(folder):
    read_so_far = []
    found = load("north", folder, progress=read_so_far.append)
    assert len(found) == 3 == len(found.people)
    assert sum(read_so_far) == 4
    (a, b), (c,), (d,) = (found.images[f"patient {number}"] for number in (1, 2, 3))
    assert [each["area"] for each in (a, b, c, d)] == [0.25, NO_LESION, NO_LABEL, 1.0]
    assert [each["size"] for each in (a, b, c, d)] == [100, 80, 300, 16]
    assert a["intensity"] == noise((40, 100), 1).mean()
    assert b["intensity"] == np.asarray(Image.open(folder / "images/b.png").convert("L")).mean()
    votes = found.votes(StatisticsPlan(1.0), Lattice(2.0**-10))
    assert votes[COUNT] == 3 * 2**10
    assert votes["area"].tolist() == [1024, 512, 0, 0, 0, 0, 0, 512, 1024]


def test_an_image_tells_nothing_about_another(tmp_path):
    """Whether a data set has colour is found out from its first images, and must not show here."""
    truth = np.full((20, 20), 255, np.uint8)
    for number in range(16):
        write(tmp_path, f"grey-{number:02}", noise((20, 20), number), truth)
    write(tmp_path, "last", (noise((20, 20, 3), 99) // [1, 2, 4]).astype(np.uint8), truth)
    whole = load("north", tmp_path)
    (tmp_path / "images/grey-00.png").unlink()
    (tmp_path / "masks/grey-00.png").unlink()
    rest = load("north", tmp_path)
    assert rest.images == {
        who: shown for who, shown in whole.images.items() if who != "image grey-00"
    }


def test_a_part_of_a_split(folder):
    split = make_split(read(folder, unlabelled=True).cases, cohorts=2, test=0, recipient=0)
    split.write(folder / "split.json")
    parts = [load(name, folder, split=folder / "split.json") for name in split.cohorts]
    assert sum(len(part) for part in parts) == 3
    assert not set(parts[0].images) & set(parts[1].images)
    assert {part.cohort for part in parts} == set(split.cohorts)


def test_the_same_images_are_the_same_person_to_a_ledger(folder):
    """Under two names in the records they are two patients in the sums."""
    (folder / "images/e.png").write_bytes((folder / "images/c.png").read_bytes())
    with (folder / "metadata.csv").open("a") as file:
        file.write("e,9\n")
    found = load("north", folder)
    assert len(found) == 4
    assert len(found.people) == 3


def test_volumes(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    image = np.random.default_rng(1).normal(size=(10, 20, 30)).astype(np.float32)
    label = np.zeros((10, 20, 30), np.uint8)
    label[:5] = 1
    for part, array in (("imagesTr", image), ("labelsTr", label)):
        (tmp_path / part).mkdir()
        nibabel.Nifti1Image(array, np.eye(4)).to_filename(tmp_path / part / "scan_1.nii.gz")
    (tmp_path / "dataset.json").write_text(
        '{"labels": {"0": "background", "1": "lesion"}, "modality": {"0": "CT"},'
        '"training": [{"image": "./imagesTr/scan_1.nii.gz", "label": "./labelsTr/scan_1.nii.gz"}]}'
    )
    found = load("north", tmp_path)
    (shown,) = next(iter(found.images.values()))
    assert (shown["area"], shown["size"]) == (0.5, 30)
    assert 100 < shown["intensity"] < 156


def test_files_with_problems_are_refused_until_they_are_accepted(folder):
    write(folder, "f", np.full((50, 50), 7, np.uint8), np.full((50, 50), 255, np.uint8))
    with (folder / "metadata.csv").open("a") as file:
        file.write("f,10\n")
    with pytest.raises(DataError, match="is an image of one colour"):
        load("north", folder)
    assert len(load("north", folder, accept=["blank-image"])) == 4
    (folder / "images/a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be decoded"):
        load("north", folder, accept=["blank-image"])


def test_what_determines_the_votes_is_claimed(folder):
    one, again = load("north", folder), load("north", folder)
    assert one.claim == again.claim
    assert one.claim != load("south", folder).claim
    other = dict(one.images) | {"patient 3": [{**one.images["patient 3"][0], "size": 17}]}
    assert Patients("north", other).claim != one.claim
