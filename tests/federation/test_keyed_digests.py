"""Whether anybody is at two hospitals: counted without images, sizes or the key."""

import hashlib
import hmac
import json
import shutil

import pytest

from canal.data import overlap
from canal.errors import ConfigurationError, DataError, InvalidValueError
from canal.federation.keyed_digests import KeyedDigests, compare, make_key, read_key
from canal.federation.rehearsal import prepare
from canal.federation.settings import Order
from typed import call_here

KEY, OTHER = bytes(32), bytes(31) + b"\1"


def images(*numbers):
    return [hashlib.sha256(bytes([number])).hexdigest() for number in numbers]


def of(name, numbers, key=KEY, size=10, initialisation="abc"):
    return KeyedDigests.of(name, initialisation, images(*numbers), key, size)


def test_pairs_are_counted():
    files = [of("north", range(6)), of("south", range(4, 9)), of("west", range(20, 30))]
    assert compare(files) == {("north", "south"): 2, ("north", "west"): 0, ("south", "west"): 0}


def test_a_file_tells_neither_size_nor_digest_nor_twice_the_same():
    few, many, again = of("north", range(2)), of("north", range(9)), of("north", range(2))
    assert len(few.digests) == len(many.digests) == 10
    assert few.digests == tuple(sorted(few.digests))
    assert not set(few.digests) & set(images(*range(9)))
    assert len(set(few.digests) & set(again.digests)) == 2  # what fills it up is drawn each time
    keyed = {hmac.new(KEY, bytes.fromhex(each), "sha256").hexdigest() for each in images(0, 1)}
    assert keyed < set(few.digests)


def test_an_image_that_is_there_twice_counts_once_and_too_many_are_refused():
    assert len(of("north", [1, 1, 2], size=2).digests) == 2
    with pytest.raises(InvalidValueError, match="size = 2 is smaller than what is there") as caught:
        of("north", range(3), size=2)
    assert "3" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"key": OTHER}, "key"), ({"size": 11}, "size"), ({"initialisation": "d"}, "initialisation")],
)
def test_files_that_cannot_have_anything_in_common_are_no_proof_of_it(more, said):
    with pytest.raises(InvalidValueError, match=f"north and south used another {said}"):
        compare([of("north", range(3)), of("south", range(3), **more)])


def test_a_hospital_is_not_compared_with_itself():
    for names in ("north",), ("north", "north"):
        with pytest.raises(InvalidValueError, match="one of each of at least two hospitals"):
            compare([of(name, range(3)) for name in names])


def test_files_and_keys_are_for_their_owners_and_damage_is_said(tmp_path):
    path, key = tmp_path / "north.json", tmp_path / "key"
    of("north", range(3)).write(path)
    make_key(key)
    assert KeyedDigests.read(path).name == "north"
    assert {each.stat().st_mode & 0o777 for each in (path, key)} == {0o600}
    assert read_key(key) != KEY
    with pytest.raises(ConfigurationError, match="name a new file"):
        make_key(key)
    for wrong in ("", "abc", "zz" * 32):
        key.write_text(wrong)
        with pytest.raises(ConfigurationError, match="is no key of 32 bytes"):
            read_key(key)
    for wrong in ("", "[]", path.read_text().replace('"digests": [', '"digests": ["ab", ')):
        path.write_text(wrong)
        with pytest.raises(DataError, match="holds no keyed digests"):
            KeyedDigests.read(path)


def test_hospitals_compare_on_the_command_line(tmp_path, checkpoints):
    for name, seed in (("north", 1), ("south", 1), ("west", 2)):
        drawn = ("--count", "6", "--size", "32", "--channels", "1", "--seed", seed)
        call_here(tmp_path, "data", "synthetic", name, *drawn)
    call_here(tmp_path, "federation", "overlap-key", "key")
    for name in ("north", "south", "west"):
        asked = ("--data", name, "--init", checkpoints.init, "--key", "key", "--name", name)
        written = ("--size", "50", "--out", f"{name}.json")
        call_here(tmp_path, "federation", "overlap-digests", *asked, *written)
    said = call_here(tmp_path, "federation", "overlap-compare", "north.json", "west.json")
    assert "north and west: no images" in said
    files = ("north.json", "south.json", "west.json", "--json")
    found = json.loads(call_here(tmp_path, "federation", "overlap-compare", *files, code=1))
    assert [each["images"] for each in found] == [6, 0, 0]


@pytest.mark.parametrize("compared", [True, False])
def test_what_hospitals_say_is_recorded_as_what_they_say(tmp_path, compared):
    order = Order(tmp_path, "out", "queries", "init", compared=compared)
    said = order.recorded({"cohorts": "not checked: elsewhere", "queries": "checked"})
    assert said["queries"] == "checked"
    assert said["cohorts"].startswith("not checked: elsewhere")
    assert ("the hospitals say that they compared" in said["cohorts"]) == compared


def test_a_rehearsal_compares_what_its_teachers_were_trained_on(tmp_path, checkpoints, arrays):
    """In one process there is nothing to agree on."""
    copies = [tmp_path / teacher.name for teacher in checkpoints.teachers]
    for row, (teacher, copied) in enumerate(zip(checkpoints.teachers, copies, strict=True)):
        shutil.copytree(teacher, copied)
        mine = arrays.rows(arrays.ids[6 * row : 6 * row + 6 + (row == 1)])
        overlap.write(copied, overlap.digests_by_patient(mine).values(), private=True)
    with pytest.raises(DataError, match="1 image of cohort 'south' is in cohort 'west' too"):
        prepare(tmp_path / "rehearsal", copies, {"queries": "queries"})
    assert prepare(tmp_path / "rehearsal", copies[:2], {"queries": "queries"}).order.is_file()
