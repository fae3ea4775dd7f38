"""Membership of patients in published sums: what is looked at is what is there, to the integer.

False alarms: the chi-square of the noise in 1e-6 of all runs, an area in two of a hundred thousand.
Seeds are fixed.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from canal.attacks.membership import Evidence, attack_rounds, gather
from canal.attacks.roc import NOTHING
from canal.errors import InvalidValueError
from canal.gradients.patients import Patients
from canal.learning.teacher import load_initialisation

RESEARCH = {"seed": 3}


@pytest.fixture(scope="module")
def outsiders(patients_of):
    """As many patients again, who are at no site."""
    return Patients("others", patients_of("dermoscopy", 6, seed=9), chunk=4)


@pytest.fixture(scope="module")
def look(make_release, tmp_path_factory, init, sites, outsiders):
    """A release of both sites, and what it says of them and of outsiders."""

    def make(*allocation, people=None, **options):
        out = tmp_path_factory.mktemp("looked") / "out"
        release = make_release(out, *allocation, **options)
        network = load_initialisation(init)[0]
        counted = []
        people = [*sites, outsiders] if people is None else people
        evidence = gather(release, network, people, counted.append)
        assert sum(counted) == len(release) * sum(each.passes for each in people)
        return release, evidence

    return make


@pytest.fixture(scope="module")
def inside(sites, outsiders):
    return np.repeat([True, False], [sum(map(len, sites)), len(outsiders)])


@pytest.mark.parametrize("plan", [{}, {"count": 0.05}])
def test_without_noise_everybody_is_found(look, inside, plan):
    """The sums are the members' parts, to the last integer, and outsiders have no place in them."""
    release, evidence = look("none", not_private=True, plan=plan)
    assert evidence.observed == pytest.approx(evidence.gram @ inside, rel=1e-12)
    found = attack_rounds(release, evidence, inside)
    assert found.roc.auc == 1
    assert found.control.roc.auc == 1
    assert found.mu is None
    assert "Without noise the same attack has an AUC of 1.000" in " ".join(found.words())


@pytest.mark.parametrize(
    "plan",
    [{}, {"count": 0.05}, {"trust": "secure-sum", "colluding": 1, "count": 0.05}],
)
def test_noise_is_in_units_of_itself(look, inside, plan):
    """What the sums hold beside the members' parts is noise of covariance G, whoever adds it."""
    _, evidence = look(plan=plan, **RESEARCH)
    rest = evidence.observed - evidence.gram @ inside
    values, directions = np.linalg.eigh(evidence.gram)
    known = values > 1e-9 * values.max()
    squares = np.square(rest @ directions[:, known]) / values[known]
    low, high = chi2.ppf([5e-7, 1 - 5e-7], known.sum())
    assert low < squares.sum() < high
    assert (evidence.mu > 0).all()


def test_noise_hides_whom_the_accounting_says(look, inside):
    release, evidence = look(**RESEARCH)
    found = attack_rounds(release, evidence, inside)
    assert found.mu == pytest.approx(release.plan.calibrate().guarantee.mu("membership"))
    assert found.control.roc.auc == 1
    # Nobody moves the sums further than is stated.
    assert evidence.mu.max() <= found.mu * (1 + 1e-9)
    content = found.to_json()
    assert content["allowed"]["unit"] == "membership"
    assert content["control"]["auc"] == 1
    with pytest.raises(InvalidValueError, match="and patients who did not"):
        attack_rounds(release, evidence, np.ones_like(inside))


def test_canaries_are_found_as_well_as_their_own_mu_allows(look, inside):
    """Of 200 plays with three outsiders as canaries; everybody else is drawn too."""
    release, evidence = look(**RESEARCH)
    loud = replace(evidence, gram=evidence.gram * 25)
    canaries = ~inside
    quiet, found = (attack_rounds(release, each, inside, canaries) for each in (evidence, loud))
    assert found.roc.auc > quiet.roc.auc + 0.05
    low, high = quiet.auc_interval
    assert quiet.control.roc.auc == 1
    assert low < quiet.roc.auc < high
    count = int(canaries.sum())
    assert len(found.roc.members) + len(found.roc.others) == 200 * count
    assert f"{count} canaries" in found.attack


def test_patients_who_add_nothing_are_not_found():
    """The negative control: an attack without power says that it has none, noise or not."""
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((6, 30))
    silent = Evidence(np.zeros((6, 6)), np.zeros(6), 1.0)
    some = np.array([True, True, True, False, False, False])
    for evidence in (silent, Evidence(1e-9 * parts @ parts.T, np.zeros(6), 1.0)):
        low, high = evidence.play(some, 1).auc_interval
        assert low < 0.5 < high


def test_an_attack_without_power_is_called_that(look, inside):
    release, evidence = look(**RESEARCH)
    silent = replace(evidence, gram=evidence.gram * 0, observed=evidence.observed * 0)
    words = attack_rounds(release, silent, inside, ~inside).words()
    assert any(said.startswith("The attack shows nothing: even without noise") for said in words)
    assert NOTHING in words
