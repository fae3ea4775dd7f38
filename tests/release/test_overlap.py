"""Nobody in two cohorts, no query in one: compared before anybody pays, and said on the card."""

from dataclasses import replace
from html import unescape

import pytest

from canal.data import overlap
from canal.data.arrays import Arrays
from canal.errors import DataError, ReleaseError
from canal.features.queries import Queries
from canal.features.release import create
from canal.privacy import Ledger
from canal.privacy.gaussian import epsilon_from_rho
from canal.release.card import render
from canal.release.manifest import CARD
from canal.release.record import said_of_overlap
from canal.release.verification import verify
from tiny import SITES


def part(arrays, start, stop):
    return arrays.rows(arrays.ids[start:stop])


@pytest.fixture
def make(tmp_path, ensemble, arrays, make_plan):
    """A release that is charged; the images of its cohorts, queries and initialisation."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget(SITES, "patient", epsilon=100.0, delta=1e-5)

    def made(name="release", rows=((0, 8), (8, 16), (16, 24)), queries=(24, 40), init=None):
        teachers = [
            replace(
                teacher,
                patients=None
                if its is None
                else tuple(overlap.digests_by_patient(part(arrays, *its)).values()),
            )
            for teacher, its in zip(ensemble.teachers, rows, strict=True)
        ]
        seen = None if init is None else frozenset(overlap.digests(part(arrays, *init)))
        known = replace(
            ensemble,
            teachers=tuple(teachers),
            trained_initialisation=init is not None,
            trained_on=seen,
        )
        asked = Queries.of(part(arrays, *queries))
        return create(tmp_path / name, known, asked, known.plan(asked, epsilon=8.0), ledger=ledger)

    made.ledger = ledger
    return made


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"rows": ((0, 8), (4, 16), (16, 24))}, "4 images of cohort 'north' are in cohort 'south'"),
        ({"rows": ((0, 8), None, (7, 24))}, "1 image of cohort 'north' is in cohort 'west' too"),
        ({"queries": (22, 40)}, "2 images of the queries are in cohort 'west': queries count as"),
        ({"init": (0, 3)}, "initialisation was trained on 3 images of cohort 'north', and it is"),
    ],
)
def test_overlap_is_refused_before_anybody_pays(make, where, said, tmp_path):
    with pytest.raises(DataError, match=said):
        make(**where)
    assert {row.action for row in make.ledger.rows()} == {"budget"}
    assert not (tmp_path / "release").exists()


def test_a_release_says_what_was_compared(make, tmp_path):
    release = make()
    assert set(release.manifest.record["overlap"].values()) == {"checked"}
    card = unescape((tmp_path / "release" / CARD).read_text())
    assert "No image is in two cohorts: all were compared, by content" in card
    assert "No query is an image of a cohort: all were compared" in card
    assert all(check.passed for check in verify(release.path, make.ledger))


def test_a_release_says_what_could_not_be_compared(make, tmp_path):
    release = make(rows=((0, 8), None, None))
    why = "not checked: nobody kept which images these cohorts have: south, west"
    assert release.manifest.record["overlap"] == {
        "cohorts": why,
        "queries": why,
        "initialisation": "checked",
    }
    card = unescape((tmp_path / "release" / CARD).read_text())
    assert "That nobody is in two cohorts was not checked (nobody kept which images these" in card
    assert render(release.manifest) == (tmp_path / "release" / CARD).read_text()


@pytest.mark.parametrize(
    "forged", [{}, {"cohorts": "checked"}, dict.fromkeys(("cohorts", "queries"), "checked")]
)
def test_a_record_that_leaves_something_out_is_refused(forged):
    with pytest.raises(ReleaseError, match="does not say which images were compared"):
        said_of_overlap(forged)
    names = ("cohorts", "queries", "initialisation")
    with pytest.raises(ReleaseError, match="which means nothing"):
        said_of_overlap(dict.fromkeys(names, "perhaps"))
    assert len(said_of_overlap(None)) == 3


@pytest.mark.parametrize("times", [2, 3])
def test_who_is_in_several_cohorts_pays_what_the_statement_says(make, times):
    """One patient in m cohorts changes m teachers of K: as one of m/K of the noise's distance."""
    release = make()
    (sentence,) = (s for s in release.statement["assumptions"] if "more than one cohort" in s)
    plan = release.plan
    once = release.statement["guarantee"]["patient"]["rho"]
    exact = epsilon_from_rho(times**2 * once, plan.delta)
    stated = float(sentence.split(f" for one who is in {times}")[0].split()[-1])
    assert exact <= stated <= exact * 1.01


def test_arrays_of_other_names_are_the_same_images(make, arrays):
    """A copied folder has other names."""
    copied = Arrays(
        tuple(f"copy-{name}" for name in arrays.ids), arrays.images, arrays.masks, "copied"
    )
    assert overlap.digests(copied) == overlap.digests(arrays)
