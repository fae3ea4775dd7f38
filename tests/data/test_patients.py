"""Who is on an image: one rule, and everything that is done per patient follows it."""

from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canal.attacks import simulation
from canal.attacks.lira import Pool
from canal.data import overlap, patients
from canal.data.arrays import Arrays
from canal.data.check import check
from canal.data.duplicates import near_duplicates
from canal.data.load import load
from canal.data.readers import read
from canal.data.split import make_split
from canal.features.queries import Queries
from canal.gradients.patients import Patients
from canal.learning.evaluation import scores

# Anna has two images. Bo, Cleo and Dan have one each, of which Cleo's looks like both others.
RECORDS = {"1": "Anna", "2": "Anna", "3": "Bo", "4": "Cleo", "5": "Dan", "6": "Eve", "7": "Fay"}
BY_RECORD = {frozenset(ids) for ids in ("12", "3", "4", "5", "6", "7")}
JOINED = {frozenset(ids) for ids in ("12", "345", "6", "7")}


@pytest.fixture
def listed(folder, monkeypatch):
    """A folder of seven images whose records name six patients."""
    monkeypatch.setenv("CANAL_CACHE", str(folder.root.parent / "cache"))
    rng = np.random.default_rng(0)
    first, second, *others = rng.integers(30, 220, (6, 8, 8)).astype(float)
    # Eleven degrees apart, so that neighbours correlate by 0.98, and the outer two by 0.93.
    turns = np.radians([34, 45, 56])
    bo, cleo, dan = (0.7 * (np.cos(turn) * first + np.sin(turn) * second) for turn in turns)
    small = dict(zip("1234567", (*others[:2], bo, cleo, dan, *others[2:]), strict=True))
    for name, pixels in small.items():
        folder.pixels(f"images/{name}.png", np.kron(pixels, np.ones((4, 4))))
        folder.mask(f"masks/{name}.png", size=(32, 32))
    folder.csv("metadata.csv", ("image", "patient"), *RECORDS.items())
    return folder.root


def partition(pairs):
    """Sets of images by whatever stands for their patient."""
    found = defaultdict(set)
    for image, patient in pairs:
        found[patient].add(image)
    return set(map(frozenset, found.values()))


def never_parted(cases, seeds=range(80)):
    """Images that are in one part of every split."""
    duplicates = near_duplicates(cases)
    parted = set()
    for seed in seeds:
        split = make_split(
            cases, cohorts=1, test=0.3, recipient=1, duplicates=duplicates, seed=seed
        )
        where = {
            i: name for name in ("test", "recipient", *split.cohorts) for i in split.part(name)
        }
        parted |= {
            pair for pair in combinations(sorted(where), 2) if len({*map(where.get, pair)}) > 1
        }
    names = sorted(case.id for case in cases)
    return {
        frozenset(other for other in names if tuple(sorted((name, other))) not in parted)
        for name in names
    }


def test_all_find_the_same_patients(listed):
    """Those who add something up go by records; those who keep apart or bind, by looks as well.

    A module that had a rule of its own again would show here.
    """
    data = read(listed)
    arrays = load(listed, size=32)
    ids = arrays.ids
    digest = dict(zip(overlap.digests(arrays), ids, strict=True))
    site, truths = Patients("site", arrays), np.array(arrays.masks)

    def images(rows):
        return {frozenset(ids[row] for row in each) for each in rows}

    def named(contents):
        return {frozenset(map(digest.get, each)) for each in contents}

    assert images(patients.rows(arrays).values()) == BY_RECORD
    assert partition((case.id, case.patient) for case in data.cases) == BY_RECORD
    assert images(site.rows.values()) == BY_RECORD
    assert images(simulation._patients(arrays)) == BY_RECORD
    assert len(site) == check(data).groups == len(BY_RECORD)
    assert Queries.of(arrays).images_per_person == max(map(len, BY_RECORD))

    assert partition(zip(ids, patients.joined(arrays), strict=True)) == JOINED
    assert never_parted(data.cases) == JOINED
    assert named(overlap.digests_by_patient(arrays).values()) == JOINED
    assert named(site.people) == JOINED
    assert partition((each.id, each.person) for each in scores(truths, arrays)) == JOINED
    others = replace(arrays, images=255 - arrays.images)
    pool = Pool.of_both(arrays, replace(others, ids=tuple(f"other {name}" for name in ids)))
    assert {frozenset(pool.images([who])) for who in pool.members} == JOINED


NAMES = st.lists(st.integers(0, 4), min_size=1, max_size=9)


@given(owners=NAMES, shown=st.data())
def test_records_are_stable_and_joining_only_joins(owners, shown):
    """Whoever leaves moves nobody else to another patient, whatever the images look like."""
    looks = shown.draw(st.lists(st.integers(0, 3), min_size=len(owners), max_size=len(owners)))
    ids = tuple(f"{row}" for row in range(len(owners)))
    kinds = np.random.default_rng(1).integers(0, 256, (4, 1, 8, 8), dtype=np.uint8)
    images = kinds[looks]
    records = {name: f"patient {who}" for name, who in zip(ids, owners, strict=True) if who}
    arrays = Arrays(ids, images, np.zeros_like(images), "drawn", patients=records)
    whole = {who: [ids[row] for row in rows] for who, rows in patients.rows(arrays).items()}
    for who in whole if len(whole) > 1 else ():
        rest = arrays.without(who)
        found = {p: [rest.ids[row] for row in rows] for p, rows in patients.rows(rest).items()}
        assert found == {p: mine for p, mine in whole.items() if p != who}
    joined = dict(zip(ids, patients.joined(arrays), strict=True))
    for mine in whole.values():
        assert len({joined[name] for name in mine}) == 1
    for one, other in combinations(range(len(ids)), 2):
        if looks[one] == looks[other]:
            assert joined[ids[one]] == joined[ids[other]]


def test_nobody_known_is_never_somebody_who_has_a_name():
    """Whatever names a record gives."""
    images = np.zeros((2, 1, 8, 8), np.uint8)
    for name in ("a", "image a", "patient a"):
        arrays = Arrays(("a", "b"), images, images, "two", patients={"b": name})
        assert len(patients.rows(arrays)) == 2


def test_images_without_a_label_may_be_left_out():
    images = np.zeros((3, 1, 8, 8), np.uint8)
    records = {"a": "patient 1", "b": "patient 1"}
    arrays = Arrays(("a", "b", "c"), images, images, "", frozenset("bc"), records)
    assert patients.rows(arrays) == {"patient 1": [0, 1], "image c": [2]}
    assert patients.rows(arrays, labelled=True) == {"patient 1": [0]}
