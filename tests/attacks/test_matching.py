"""Membership by matching: certain without noise, nothing with much, never above what is allowed."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from canal.attacks.finding import Finding, features_mu
from canal.attacks.matching import (
    _log_population,
    _score,
    match,
)
from canal.attacks.roc import Roc, allowed_auc
from canal.attacks.view import noiseless_rows, released_rows, spreads
from canal.errors import InvalidValueError


@pytest.fixture(scope="module")
def members(make_arrays):
    return make_arrays(40, seed=0)


@pytest.fixture(scope="module")
def others(make_arrays):
    return make_arrays(80, seed=1, prefix="other")


def test_without_noise_it_is_right_every_time(make_release, ensemble, members, others):
    release = make_release(arrays=members, allocation="none")
    roc = match(release, ensemble, members, others)
    assert (len(roc.members), len(roc.others)) == (40, 40)
    assert roc.auc == 1
    assert roc.tpr(0) == 1


def test_what_it_expects_without_noise_is_what_is_released(make_release, ensemble, members):
    release = make_release(arrays=members, allocation="none")
    expected = noiseless_rows(release, ensemble, members)
    assert expected.shape == (40, 6 * 16)
    # Half a unit of storage.
    unit = np.repeat(release.scale / release.caps, 16)
    assert (np.abs(released_rows(release) - expected) <= unit * (0.5 + 1e-9)).all()


def test_what_is_released_is_what_it_expects_and_noise(make_release, ensemble, members):
    """False-alarm rate 1e-6: the sum of squares of that noise is chi-square."""
    release = make_release(arrays=members, seed=0)
    rest = (released_rows(release) - noiseless_rows(release, ensemble, members)) / spreads(release)
    assert 5e-7 < stats.chi2.cdf(np.square(rest).sum(), rest.size) < 1 - 5e-7


def test_with_much_noise_it_is_a_coin(make_release, ensemble, members, others):
    release = make_release(arrays=members, seed=0, epsilon=0.01)
    roc = match(release, ensemble, members, others)
    low, high = roc.auc_interval
    # Five standard errors: false-alarm rate 6e-7.
    assert abs(roc.auc - 0.5) < 5 * (high - low) / (2 * 1.96)


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 100.0])
def test_never_above_what_the_noise_allows(make_release, ensemble, members, others, epsilon):
    """By more than chance: the lower end of its interval. Seeds are fixed."""
    release = make_release(arrays=members, seed=1, epsilon=epsilon)
    roc = match(release, ensemble, members, others)
    mu = features_mu(release, "image")
    assert roc.auc_interval[0] <= allowed_auc(mu)
    finding = Finding("membership", "digest", roc, "image", mu)
    assert not any("has a bug" in sentence for sentence in finding.words())


def test_fewer_channels_than_were_paid_for(make_release, ensemble, members, others):
    """Noise-aware allocation drops channels; what is left of them has its price all the same."""
    release = make_release(arrays=members, seed=1, allocation="reverse", epsilon=0.2)
    assert 0 < len(release.channels) < release.plan.released
    assert 0 < features_mu(release, "image") < 10
    match(release, ensemble, members, others)


def test_an_attack_above_what_is_allowed_says_so():
    roc = Roc.of(np.ones(100), np.zeros(100))
    assert any("has a bug" in said for said in Finding("a", "d", roc, "image", 0.1).words())
    assert any("no noise" in said for said in Finding("a", "d", roc, "image", None).words())


@pytest.mark.parametrize("size", [1.0, 2.0])
def test_the_best_score_of_a_gaussian_toy(size):
    r"""One released row, and images whose features are normal: the optimum is known.

    A member's score is the log of $p(r \mid f)/p(r)$; by Neyman and Pearson, no other attack has a
    larger area. It is held against the exact density, and against the nearest-neighbour attack,
    which it must not lose to. Standard error of the areas: 0.01.
    """
    rng = np.random.default_rng(0)
    dimensions, runs = 6, 2000
    references = rng.normal(0, size, (20_000, dimensions))
    true = {"members": [], "others": []}
    exact, nearest = {"members": [], "others": []}, {"members": [], "others": []}
    density = stats.multivariate_normal(np.zeros(dimensions), (1 + size**2) * np.eye(dimensions))
    member = rng.normal(0, size, (runs, dimensions))
    other = rng.normal(0, size, (runs, dimensions))
    rows = member + rng.normal(0, 1, member.shape)
    nobody = _log_population(rows, references)
    for index in range(runs):
        row = rows[index : index + 1]
        for name, feature in (("members", member[index]), ("others", other[index])):
            true[name].append(_score(row, feature[None], nobody[index : index + 1])[0])
            log = -np.square(row[0] - feature).sum() / 2
            exact[name].append(log - density.logpdf(row[0]))
            nearest[name].append(log)
    ours, best, plain = (Roc.of(each["members"], each["others"]) for each in (true, exact, nearest))
    assert ours.auc == pytest.approx(best.auc, abs=0.01)
    assert ours.auc >= plain.auc - 0.01
    assert ours.auc > 0.75


def test_with_one_neighbour_it_reaches_what_is_allowed():
    """Two worlds, one row: the score is the likelihood ratio, its area that of the Gaussian."""
    rng = np.random.default_rng(2)
    mean, runs = np.array([1.5, 0.0]), 4000
    rows = {
        "members": rng.normal(0, 1, (runs, 2)) + mean,
        "others": rng.normal(0, 1, (runs, 2)),
    }
    found = {
        name: [
            _score(row[None], mean[None], -np.square(row[None]).sum(axis=1) / 2)[0] for row in each
        ]
        for name, each in rows.items()
    }
    roc = Roc.of(found["members"], found["others"])
    # False-alarm rate below 1e-6.
    assert roc.auc == pytest.approx(allowed_auc(1.5), abs=5 * 0.006)


def test_a_row_far_from_every_image_does_no_harm():
    found = _score(np.array([[1e4, 0.0]]), np.array([[0.0, 0.0]]), np.array([-1e3]))
    assert math.isfinite(found[0])


def test_other_teachers_are_refused(make_release, ensemble, members, others):
    release = make_release(arrays=members, seed=0)
    turned = dataclasses.replace(ensemble, teachers=ensemble.teachers[::-1])
    with pytest.raises(InvalidValueError, match="north, south, west, in this order"):
        match(release, turned, members, others)


def test_members_that_were_not_asked_about_are_refused(make_release, ensemble, members, others):
    release = make_release(arrays=members, seed=0)
    with pytest.raises(InvalidValueError, match="80 of the 80 members are not in"):
        match(release, ensemble, others, members)


def test_others_that_are_members_or_too_few_are_refused(
    make_release, ensemble, members, others, make_arrays
):
    release = make_release(arrays=members, seed=0)
    with pytest.raises(InvalidValueError, match="40 of these 40 are"):
        match(release, ensemble, members, members)
    with pytest.raises(InvalidValueError, match="at least 4 images"):
        match(release, ensemble, members, make_arrays(3, seed=5))


def test_others_that_the_release_answers_are_refused(make_release, ensemble, members, others):
    """Half of the queries are given as members, the other half as others: both were asked."""
    release = make_release(arrays=members, seed=0)
    half = members.rows(members.ids[:20])
    rest = members.rows(members.ids[20:]).beside(others)
    with pytest.raises(InvalidValueError, match=r"20 of the 100 others are in .*case-20, …"):
        match(release, ensemble, half, rest)


def test_progress_counts_every_image_and_network(make_release, ensemble, members, others):
    counted = []
    match(make_release(arrays=members, seed=0), ensemble, members, others, counted.append)
    assert sum(counted) == 3 * 120


def test_a_few_found_for_sure_are_above_what_is_allowed_too():
    """An area near a half, and a fifth of the members named without one false alarm."""
    rng = np.random.default_rng(0)
    members = np.r_[np.full(60, 100.0), rng.standard_normal(240)]
    roc = Roc.of(members, rng.standard_normal(1000))
    assert roc.auc < allowed_auc(0.5)
    said = Finding("membership", "digest", roc, "image", 0.5).words()
    assert any("has a bug" in sentence for sentence in said)
    assert not any("has a bug" in sentence for sentence in Finding("", "", roc, "image", 3).words())
