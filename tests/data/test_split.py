"""Splits: nobody on two sides, whatever the order of files; an edited file is noticed."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from canal.data.case import Case
from canal.data.readers import read
from canal.data.split import PARTITIONS, Split, as_table, make_split
from canal.errors import DataError, InvalidValueError


def _cases(count, *, group=lambda n: n, site=lambda n: ""):
    return [
        Case(f"case-{n:03d}", (Path(f"{n}.png"),), (Path(f"{n}_mask.png"),), f"{group(n)}", site(n))
        for n in range(count)
    ]


def _areas(cases, seed=0):
    rng = np.random.default_rng(seed)
    return {case.id: float(rng.uniform()) for case in cases}


def _parts(split):
    return {name: split.part(name) for name in ("test", "recipient", *split.cohorts)}


def _everyone(split):
    return sorted(name for ids in _parts(split).values() for name in ids)


@given(
    owners=st.lists(st.integers(0, 40), min_size=24, max_size=50),
    twins=st.lists(st.lists(st.integers(0, 23), min_size=2, max_size=4), max_size=4),
    partition=st.sampled_from(PARTITIONS),
    seed=st.integers(0, 1000),
)
def test_who_belongs_together_is_never_parted(owners, twins, partition, seed):
    cases = _cases(len(owners), group=lambda n: owners[n], site=lambda n: "xyz"[owners[n] % 3])
    duplicates = [[cases[n].id for n in group] for group in twins]
    try:
        split = make_split(
            cases,
            cohorts=2,
            recipient=3,
            partition=partition,
            alpha=0.5,
            areas=_areas(cases),
            duplicates=duplicates,
            seed=seed,
        )
    except DataError:
        assume(False)  # a draw with too few groups to go round
    # The oracle: components of the graph of same owner or twin, by scipy.
    edges = [(n, owners.index(owner)) for n, owner in enumerate(owners)]
    edges += [(group[0], other) for group in twins for other in group]
    graph = coo_array((np.ones(len(edges)), np.array(edges).T), shape=[len(cases)] * 2)
    together = connected_components(graph, directed=False)[1]
    where = {name: part for part, ids in _parts(split).items() for name in ids}
    assert len({(together[n], where[case.id]) for n, case in enumerate(cases)}) == len(
        set(together)
    )
    assert _everyone(split) == [case.id for case in cases]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_order_of_cases_and_of_duplicates_does_not_matter(partition):
    cases = _cases(120, group=lambda n: n // 2, site=lambda n: "ab"[n % 4 // 2])
    duplicates = [["case-001", "case-050", "case-090"], ["case-050", "case-110"]]
    shuffled = random.Random(3).sample(cases, len(cases))
    areas, settings = _areas(cases), {"partition": partition, "recipient": 20, "seed": 5}
    split = make_split(cases, areas=areas, duplicates=duplicates, **settings)
    turned = [group[::-1] for group in duplicates[::-1]]
    assert make_split(shuffled, areas=areas, duplicates=turned, **settings) == split


def test_the_seed_decides():
    cases = _cases(100)
    first, again, other = (make_split(cases, recipient=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.digest == again.digest
    assert first.digest != other.digest
    assert set(first.test) != set(other.test)


def test_one_more_case_hardly_moves_the_others():
    cases = _cases(300)
    before, after = (make_split(cases[:count], recipient=30) for count in (299, 300))
    # At most the group at each of the two borders makes way; a reshuffle would move dozens.
    assert len(set(before.test) - set(after.test)) <= 1
    assert len(set(before.recipient) - set(after.recipient)) <= 2


def test_parts_have_the_sizes_that_were_asked_for():
    split = make_split(_cases(200), cohorts=4, test=0.25, recipient=30)
    assert as_table(split) == [
        {"part": "test", "cases": 50},
        {"part": "recipient", "cases": 30},
        *({"part": f"site-{k}", "cases": 30} for k in range(1, 5)),
    ]


def test_groups_of_unlike_size_still_make_equal_cohorts():
    sizes = [12, 9, 7, 5, 5, 3, 2, *[1] * 40]
    owner = np.repeat(range(len(sizes)), sizes)
    split = make_split(_cases(len(owner), group=lambda n: owner[n]), test=0, recipient=0)
    counts = [len(ids) for ids in split.cohorts.values()]
    assert max(counts) - min(counts) <= 1


def test_a_hospital_is_a_cohort():
    cases = _cases(90, site=lambda n: ("oslo", "paris", "rome")[n % 3])
    split = make_split(cases, partition="site", recipient=10)
    site = {case.id: case.site for case in cases}
    assert list(split.cohorts) == ["oslo", "paris", "rome"]
    assert all({site[i] for i in ids} == {name} for name, ids in split.cohorts.items())


def _skew(alpha, seed):
    """How much the largest of four cohorts has, and how unlike the mixtures of lesion sizes are."""
    cases = _cases(400)
    areas = _areas(cases, seed)
    split = make_split(
        cases, cohorts=4, recipient=0, partition="dirichlet", alpha=alpha, areas=areas, seed=seed
    )
    counts = [len(ids) for ids in split.cohorts.values()]
    middle = np.median([areas[i] for ids in split.cohorts.values() for i in ids])
    large = [np.mean([areas[i] > middle for i in ids]) for ids in split.cohorts.values()]
    return max(counts) / sum(counts), np.ptp(large)


def test_a_small_alpha_makes_cohorts_differ_and_a_large_one_does_not():
    small, large = (np.array([_skew(alpha, seed) for seed in range(10)]) for alpha in (0.1, 1e6))
    assert small[:, 0].mean() > 0.45
    assert small[:, 1].mean() > 0.4
    # At most one group of each of four sizes is gained by rounding, of 80.
    assert large[:, 0].max() < 0.27
    assert large[:, 1].max() < 0.06


def test_nobody_goes_home_empty():
    # One patient with most of the images: the other cohorts cannot be filled from it.
    cases = _cases(40, group=lambda n: max(n, 34))
    for seed in range(20):
        split = make_split(
            cases,
            cohorts=4,
            test=0,
            recipient=0,
            partition="dirichlet",
            alpha=0.01,
            areas=_areas(cases),
            seed=seed,
        )
        assert all(split.cohorts.values())
        assert _everyone(split) == [case.id for case in cases]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"partition": "random"}, "partition = 'random' must be one of equal, site, dirichlet"),
        ({"test": 1.0}, "test = 1.0 must be at least 0 and below 1"),
        ({"test": float("nan")}, "test = nan must be"),
        ({"cohorts": 0}, "cohorts must be at least 1"),
        ({"recipient": -1}, "recipient at least 0"),
        ({"partition": "dirichlet"}, "needs the lesion areas"),
        ({"partition": "dirichlet", "areas": {}, "alpha": 0.0}, "alpha = 0.0 must be above 0"),
        ({"partition": "dirichlet", "areas": {}, "alpha": float("inf")}, "alpha = inf must be"),
    ],
)
def test_settings_out_of_range(wrong, said):
    with pytest.raises(InvalidValueError, match=said):
        make_split(_cases(100), **wrong)


def _untidy(n):
    return "oslo" if n % 2 else ""


@pytest.mark.parametrize(
    ("cases", "settings", "said"),
    [
        (_cases(50), {"recipient": 60}, "50 cases do not fill 3 cohorts .* ask for fewer"),
        (_cases(50), {"recipient": 9, "cohorts": 45}, "do not fill 45 cohorts"),
        ([], {}, "0 cases do not fill"),
        (_cases(50), {"partition": "site"}, "no folder for each hospital; use the equal"),
        (_cases(50, site=_untidy), {"partition": "site"}, "in no hospital's folder"),
        (_cases(99, site=lambda n: "test"), {"partition": "site"}, "called 'test'.*rename"),
        (_cases(50) + _cases(1), {}, "two cases have the same id"),
        (_cases(99), {"partition": "dirichlet", "areas": {}}, "has no lesion area"),
        (
            _cases(50),
            {"partition": "dirichlet", "areas": _areas(_cases(50)), "recipient": 60},
            "do not fill 3 cohorts",
        ),
    ],
)
def test_cases_that_cannot_be_divided(cases, settings, said):
    with pytest.raises(DataError, match=said):
        make_split(cases, **settings)


def test_a_part_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(DataError, match="no part 'site-9'; it has test, recipient, pooled, site-1"):
        make_split(_cases(100)).part("site-9")


def test_a_split_survives_its_file(tmp_path):
    split = make_split(_cases(100), seed=8)
    split.write(tmp_path / "deep" / "split.json")
    assert Split.read(tmp_path / "deep" / "split.json") == split


def _move(content):
    content["cohorts"]["site-1"].append(content["test"].pop())


@pytest.mark.parametrize(
    "edit",
    [
        _move,
        lambda content: content["recipient"].pop(),
        lambda content: content.update(seed=9),
        lambda content: content.update(digest="0" * 64),
        lambda content: content["cohorts"].update(mine=content["cohorts"].pop("site-1")),
    ],
)
def test_an_edited_file_is_noticed(tmp_path, edit):
    path = tmp_path / "split.json"
    make_split(_cases(100)).write(path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"split\.json was changed after it was made; make it anew"):
        Split.read(path)


def test_a_case_in_two_parts_is_refused_whatever_the_digest_says(tmp_path):
    Split(("a",), ("b",), {"site-1": ("c", "a")}, seed=0).write(tmp_path / "split.json")
    with pytest.raises(DataError, match="has a case in two parts"):
        Split.read(tmp_path / "split.json")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "canal-split/2"}', "\xff"])
def test_another_file_is_no_split(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"is no split .*make one with `canal data split`"):
        Split.read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the split .*No such file.*canal data split"):
        Split.read(tmp_path / "split.json")


@pytest.mark.data
def test_real_sequences_stay_together(real):
    cases = read(real / "CVC-ClinicDB").cases
    split = make_split(cases, recipient=60, seed=1)
    sequence = {case.id: case.patient for case in cases}
    seen = Counter(group for ids in _parts(split).values() for group in {sequence[i] for i in ids})
    assert len(seen) == 29
    assert set(seen.values()) == {1}
