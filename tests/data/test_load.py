"""Loading: decoded once, keyed by content, for its owner only; in parts, with the patients."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from canal.data import load as loading
from canal.data.arrays import copy_rows
from canal.data.case import Case, stem
from canal.data.decode import decode_image, decode_mask
from canal.data.load import count_channels, default_folder, load, load_cases
from canal.data.readers import read
from canal.data.split import Split, make_split
from canal.data.synthetic import write
from canal.errors import DataError
from canal.features.queries import Queries


@pytest.fixture
def cases(folder):
    for name in "abc":
        folder.pair(f"images/{name}.png", f"masks/{name}.png")
    return _listed(folder, "abc")


@pytest.fixture
def place(tmp_path):
    return tmp_path / "cache"


def _listed(folder, names, suffix="png"):
    return [
        Case(
            name,
            (folder.root / f"images/{name}.{suffix}",),
            (folder.root / f"masks/{name}.{suffix}",),
            patient=f"image {name}",
            labels=() if suffix == "png" else (1,),
        )
        for name in names
    ]


def _refuse(*args, **kwargs):
    raise AssertionError("a file was decoded")


def test_rows_are_the_decoded_cases(cases, place):
    arrays = load_cases(cases, size=(16, 12), folder=place)
    assert arrays.ids == ("a", "b", "c")
    assert arrays.images.shape == (3, 3, 16, 12)
    assert arrays.masks.shape == (3, 1, 16, 12)
    for row, case in enumerate(cases):
        expected = decode_image(case, size=(16, 12), channels=3)
        assert np.array_equal(arrays.images[row], expected)
        assert np.array_equal(arrays.masks[row], decode_mask(case, size=(16, 12)))


def test_the_second_load_decodes_nothing(cases, place, monkeypatch):
    steps = []
    first = load_cases(cases, size=(16, 12), channels=3, folder=place, progress=steps.append)
    assert steps == [1, 1, 1]
    for name in ("decode", "decode_image", "open_picture"):
        monkeypatch.setattr(loading, name, _refuse)
    second = load_cases(cases, size=(16, 12), channels=3, folder=place, progress=_refuse)
    assert second.digest == first.digest
    assert np.array_equal(second.images, first.images)
    assert np.array_equal(second.masks, first.masks)
    with pytest.raises(AssertionError, match="a file was decoded"):
        load_cases(cases, size=(16, 13), channels=3, folder=place)


def test_arrays_are_mapped_and_cannot_be_written_to(cases, place):
    load_cases(cases, size=(16, 12), folder=place)
    arrays = load_cases(cases, size=(16, 12), folder=place)
    for array in (arrays.images, arrays.masks):
        assert isinstance(array, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_new_content_under_an_old_name_is_decoded_anew(cases, folder, place):
    before = load_cases(cases, size=(24, 20), folder=place)
    folder.mask("masks/b.png", box=(0, 1, 0, 1))
    after = load_cases(cases, size=(24, 20), folder=place)
    assert after.digest != before.digest
    assert after.masks[1].sum() == 1
    assert before.masks[1].sum() > 1  # what someone else has mapped does not change


@pytest.mark.parametrize(
    "change", [{"size": (12, 16)}, {"channels": 1}, {"order": -1}, {"labels": (255,)}]
)
def test_whatever_determines_the_pixels_is_in_the_key(cases, place, change):
    before = load_cases(cases, size=(16, 12), channels=3, folder=place)
    changed = [
        Case(case.id, case.image, case.masks, case.patient, labels=change.get("labels", ()))
        for case in cases[:: change.get("order", 1)]
    ]
    size, channels = change.get("size", (16, 12)), change.get("channels", 3)
    after = load_cases(changed, size=size, channels=channels, folder=place)
    assert after.digest != before.digest
    assert after.images.shape == (3, channels, *size)


def test_the_same_content_elsewhere_has_the_same_key(cases, folder, place, tmp_path):
    before = load_cases(cases, size=(16, 12), folder=place)
    folder.root.rename(tmp_path / "moved")
    moved = [
        Case(
            case.id,
            (tmp_path / "moved/images" / case.image[0].name,),
            (tmp_path / "moved/masks" / case.masks[0].name,),
            case.patient,
        )
        for case in cases
    ]
    assert load_cases(moved, size=(16, 12), folder=place).digest == before.digest


def test_private_pixels_are_for_their_owner_only(cases, place):
    before = os.umask(0)
    try:
        load_cases(cases, size=(16, 12), folder=place)
    finally:
        os.umask(before)
    made = [place, *place.iterdir()]
    assert len(made) == 2
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700]


def test_nothing_is_left_behind_when_a_file_is_broken(cases, folder, place):
    folder.cut("images/c.png")
    with pytest.raises(DataError, match=r"c\.png cannot be decoded"):
        load_cases(cases, size=(16, 12), folder=place)
    assert list(place.iterdir()) == []


def test_a_slower_twin_takes_what_the_faster_one_left(cases, place):
    twin = []

    def overtaken(_):
        if not twin:
            twin.append(None)
            twin[0] = load_cases(cases, size=(16, 12), folder=place)

    slow = load_cases(cases, size=(16, 12), folder=place, progress=overtaken)
    assert np.array_equal(slow.images, twin[0].images)
    assert [path.name for path in place.iterdir()] == [slow.digest[:32]]


def test_two_processes_at_once(cases, folder, place):
    program = (
        "import sys; from pathlib import Path; from canal.data import readers; "
        "from canal.data.load import load_cases; "
        "data = readers.read(sys.argv[1]); sys.stdin.readline(); "
        "print(load_cases(data.cases, size=(16, 12), folder=Path(sys.argv[2])).images.sum())"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, folder.root, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in both]
    expected = load_cases(cases, size=(16, 12), folder=place)
    assert said == [f"{expected.images.sum()}\n"] * 2
    assert [path.name for path in place.iterdir()] == [expected.digest[:32]]


def test_what_was_decoded_by_other_rules_is_decoded_anew(cases, place, monkeypatch):
    new = load_cases(cases, size=(16, 12), folder=place)
    monkeypatch.setattr(loading, "_VERSION", loading._VERSION - 1)
    old = load_cases(cases, size=(16, 12), folder=place)
    assert old.digest != new.digest
    assert len(list(place.iterdir())) == 2


def test_all_broken_files_are_named_at_once(cases, folder, place):
    for name in "ab":
        folder.cut(f"images/{name}.png")
    with pytest.raises(DataError, match=r"a\.png cannot be decoded .*b\.png") as caught:
        load_cases(cases, size=(16, 12), folder=place)
    assert "--accept" not in str(caught.value)
    assert "c.png" not in str(caught.value)


def test_rows_by_id(cases, place):
    arrays = load_cases(cases, size=(16, 12), folder=place)
    some = arrays.rows(["c", "a"])
    assert some.ids == ("c", "a")
    assert np.array_equal(some.images, arrays.images[[2, 0]])
    assert np.array_equal(some.masks, arrays.masks[[2, 0]])
    assert len({arrays.digest, some.digest, arrays.rows(["a", "c"]).digest}) == 3


def test_copied_rows_are_their_own(cases, place):
    """Of a mapped file and of an array in memory alike; the file can be read on afterwards."""
    mapped = load_cases(cases, size=(16, 12), folder=place).images
    whole = np.array(mapped)
    for array in (mapped, whole):
        rows = copy_rows(array, 1, 3)
        np.testing.assert_array_equal(rows, whole[1:3])
        assert type(rows) is np.ndarray
        assert rows.flags.owndata
        rows[:] = 0
        np.testing.assert_array_equal(array, whole)
    assert whole.any()
    assert copy_rows(mapped, 2, 99).shape == (1, 3, 16, 12)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux to look inside")
def test_copied_rows_leave_nothing_of_the_file_in_memory(tmp_path):
    """A data set larger than memory can be read from end to end."""
    np.save(tmp_path / "big.npy", np.ones((64, 1 << 16), dtype=np.uint8))

    def resident():
        return sum(
            int(line.split()[1])
            for part in Path("/proc/self/smaps").read_text().split("VmFlags")
            if str(tmp_path) in part
            for line in part.splitlines()
            if line.startswith("Rss:")
        )

    big = np.load(tmp_path / "big.npy", mmap_mode="r")
    assert big.sum() == big.size
    assert resident() > 3000  # kilobytes: the control, all of it is there
    for start in range(0, 64, 8):
        assert copy_rows(big, start, start + 8).sum() == 8 << 16
        assert resident() < 100


def test_rows_that_are_not_there(cases, place):
    arrays = load_cases(cases, size=(16, 12), folder=place)
    with pytest.raises(DataError, match=r"1 cases of the split are not in the data \(gone, …\)"):
        arrays.rows(["a", "gone"])


def test_volumes(folder, place):
    for name in "ab":
        folder.scan(f"images/{name}.nii.gz")
        folder.volume(f"masks/{name}.nii.gz", np.ones((8, 9, 10), np.uint8))
    arrays = load_cases(_listed(folder, "ab", "nii.gz"), size=(8, 8, 8), folder=place)
    assert arrays.images.shape == arrays.masks.shape == (2, 1, 8, 8, 8)
    assert arrays.masks.all()


@pytest.mark.parametrize("size", [(16,), (16, 16, 16)])
def test_a_size_of_other_dimensions_is_refused(cases, place, size):
    with pytest.raises(DataError, match=rf"has {len(size)} sides, but a has 2; give 2 lengths"):
        load_cases(cases, size=size, folder=place)


def test_no_cases_no_files_and_unlike_channels_are_errors(cases, folder, place):
    with pytest.raises(DataError, match="there are no cases to load; check the folder"):
        load_cases([], size=(16, 12), folder=place)
    double = Case("double", cases[0].image * 2, cases[0].masks, "double")
    with pytest.raises(DataError, match="double has 6 channels, others have 3; all cases"):
        load_cases([*cases, double], size=(16, 12), folder=place)
    (folder.root / "images/b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png cannot be read: No such file.*replace"):
        load_cases(cases, size=(16, 12), channels=3, folder=place)


@pytest.mark.parametrize(("colours", "channels"), [("ggg", 1), ("ggc", 3), ("ttt", 1)])
def test_channels_are_found_out(folder, colours, channels):
    for name, colour in zip("abc", colours, strict=True):
        folder.image(f"images/{name}.png", colour=colour == "c")
    if "t" in colours:  # grey saved as colour, with the tinge of a JPEG
        grey = np.random.default_rng(0).integers(0, 250, (24, 20, 1))
        folder.pixels("images/a.png", grey + np.array([0, 2, 4]))
    assert count_channels(_listed(folder, "abc")) == channels


def test_where_the_cache_is_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("CANAL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "canal"
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "own"))
    assert default_folder() == tmp_path / "own"


def test_images_without_their_labels_stand_beside_those_with_them(cases, place):
    arrays = load_cases(cases, size=(16, 12), folder=place)
    blind = arrays.without_labels()
    assert not blind.masks.any()
    assert not blind.labelled.any()
    both = arrays.beside(blind)
    assert both.labelled.tolist() == [True] * 3 + [False] * 3
    assert np.array_equal(both.images[:3], both.images[3:])
    assert [both.patients[name] for name in both.ids] == ["image a", "image b", "image c"] * 2
    assert len({arrays.digest, blind.digest, both.digest}) == 3
    with pytest.raises(DataError, match="there twice"):
        arrays.beside(arrays)
    with pytest.raises(DataError, match="do not go together"):
        arrays.beside(load_cases(cases, size=(12, 12), folder=place).without_labels())


@pytest.fixture
def ward(tmp_path, monkeypatch):
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data", 30, size=(32, 32))
    cases = read(tmp_path / "data").cases
    make_split(cases, recipient=8, partition="site").write(tmp_path / "split.json")
    return tmp_path


def test_parts_are_rows_of_the_whole(ward):
    whole = load(ward / "data", size=32)
    test, pooled = (
        load(ward / "data", size=32, split=ward / "split.json", part=part)
        for part in ("test", "pooled")
    )
    assert sorted((*test.ids, *pooled.ids)) == sorted(whole.ids)
    for part in (test, pooled):
        same = whole.rows(part.ids)
        assert np.array_equal(part.images, same.images)
        assert np.array_equal(part.masks, same.masks)
        assert part.patients == same.patients


def test_who_is_on_the_images_is_not_forgotten(ward):
    """Two images of one person count as two: patients come from the records by themselves."""
    cases = read(ward / "data").cases
    people = [case.patient for case in cases]
    most = max(people.count(person) for person in people)
    assert most > 1
    assert Queries.of(load(ward / "data", size=32)).images_per_person == most


def test_two_files_of_one_name_are_refused(ward):
    """Else somebody who joins could take another's place, and change what that one adds."""
    image = sorted((ward / "data" / "endoscopy" / "images").iterdir())[0]
    image.with_suffix(".jpg").write_bytes(image.read_bytes())
    with pytest.raises(DataError, match=r"has the same id as .* remove one of the two"):
        load(ward / "data", size=32)


def test_a_person_in_two_parts_is_refused(ward):
    """Records that were mended after the split was made: who is at two sites would pay for one."""
    table = ward / "data" / "endoscopy" / "metadata.csv"
    header, *rows = table.read_text().splitlines()
    split = Split.read(ward / "split.json")
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

    load(ward / "data", size=32, split=ward / "split.json")
    table.write_text("\n".join([header, *map(mended, rows)]) + "\n")
    with pytest.raises(DataError, match=f"{person} is in two parts of the split"):
        load(ward / "data", size=32, split=ward / "split.json")


def test_images_without_a_mask_are_taken_when_asked_for(ward):
    for mask in sorted((ward / "data" / "endoscopy" / "masks").iterdir())[:2]:
        mask.unlink()
    taken = load(ward / "data", size=32, unlabelled=True)
    assert len(taken.unlabelled) == 2
    assert taken.labelled.sum() == len(taken.ids) - 2
