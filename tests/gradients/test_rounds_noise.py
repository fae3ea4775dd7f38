"""Noise of rounds: whose it is, what it is bound to, and all that is published beside it."""

import hashlib
import json

import numpy as np
import pytest

from canal.errors import ReleaseError
from canal.gradients.mechanism import COUNT, COUNT_STEP, PatientSum, stream_of_round
from canal.gradients.patients import Patients
from canal.gradients.update import Trajectory
from canal.privacy import Secret, rounded_gaussian
from canal.release.mechanism import LocalFederation, Noise, digest
from canal.release.verification import verify


def test_without_noise_it_must_be_said(places, make_release, sites, shared, gradients):
    place = places()
    with pytest.raises(ReleaseError, match="protects nobody; say --not-private"):
        make_release(place.out, "none", ledger=place.ledger)
    release = make_release(place.out, "none", not_private=True, plan={"count": 0.05, "rounds": 2})
    assert not release.private
    assert release.statement["stamp"].startswith("NOT PRIVATE: no noise")
    assert [check.what for check in verify(place.out) if check.passed is False] == []
    assert release.patients == sum(len(site) for site in sites)
    public = release.public(shared().coordinates.groups)
    mechanism = PatientSum.of(release.plan.calibrate(public.weights), public)
    shared().coordinates.write(shared().start.values)
    lattice = mechanism.calibrated.lattice
    plain = sum(site.total(gradients, mechanism.clip, lattice, 0).numpy() for site in sites)
    np.testing.assert_array_equal(release.sums(0), plain)


def test_a_patient_more_or_less_moves_a_release_by_that_patients_part(
    places, make_release, shared, sites, gradients
):
    """From end to end: two releases with the same draws, with a patient and without."""
    coordinates, (first, second) = shared().coordinates, sites
    who, *_ = dict.fromkeys(second.arrays.patients.values())
    fewer = Patients(second.cohort, second.arrays.without(who), chunk=4)
    mine = [name for name in second.arrays.ids if second.arrays.patients[name] == who]
    alone = Patients(second.cohort, second.arrays.rows(mine), chunk=4)
    made = [
        make_release(
            places().out,
            sites=some,
            paired=True,
            seed=3,
        )
        for some in ((first, second), (first, fewer))
    ]
    public = shared().start.public
    mechanism = PatientSum.of(made[0].plan.calibrate(public.weights), public)
    coordinates.write(shared().start.values)
    lattice = mechanism.calibrated.lattice
    part = alone.total(gradients, mechanism.clip, lattice, 0).numpy()
    assert np.abs(part).max() > 0
    difference = made[0].sums(0).astype(np.int64) - made[1].sums(0)
    np.testing.assert_array_equal(difference, part)
    assert sum(n * n for n in difference.tolist()) <= round(1 / lattice.step) ** 2


def test_arms_of_an_experiment_share_their_draws(places, make_release, shared):
    """Twice the noise is the same noise, twice as loud; never for anybody's protection."""
    made = [
        make_release(places().out, paired=True, seed=3, plan=plan)
        for plan in ({"relation": "add-remove"}, {"relation": "replace"})
    ]
    public = shared().start.public
    sigma = [float(release.plan.calibrate(public.weights).sigma[0]) for release in made]
    assert sigma[1] == pytest.approx(2 * sigma[0])
    one, two = (release.sums(0).astype(np.float64) for release in made)
    step = made[0].plan.calibrate(public.weights).lattice.step
    # What is left is the sum itself, of twelve patients at most, and half a step of rounding.
    assert np.linalg.norm((two - 2 * one) * step) <= 12.1
    assert np.linalg.norm(one * step) > 30
    with pytest.raises(ReleaseError, match="never drawn twice"):
        make_release(places().out, paired=True, ledger=places().ledger)


def test_shares_of_all_sites_are_simulated(
    places, make_release, shared, sites, gradients, monkeypatch
):
    """What is published is the sum of what every site would send; count and rounds."""
    place = places()
    choices = {"trust": "secure-sum", "colluding": 1, "count": 0.05}
    with pytest.raises(ReleaseError, match="nothing to hide"):
        make_release(place.out, plan=choices, ledger=place.ledger)
    agreed, prepare = [], LocalFederation.prepare

    def noted(self, mechanism, secret, key):
        agreed.append(mechanism.spec)
        prepare(self, mechanism, secret, key)

    monkeypatch.setattr(LocalFederation, "prepare", noted)
    start, coordinates = shared().start, shared().coordinates
    release = make_release(place.out, plan=choices, seed=3)
    assert [check.what for check in verify(place.out) if check.passed is False] == []
    public = start.public
    mechanism = PatientSum.of(release.plan.calibrate(public.weights), public)
    (agreement,) = agreed
    noises = [
        agreement.noise_of_site(Secret.seeded(3).at(site.cohort), [site.cohort, site.digest])
        for site in sites
    ]
    parts = sum(
        mechanism.noisy_count.share(mechanism.count(len(site)), noise.of_statistic(COUNT))
        for site, noise in zip(sites, noises, strict=True)
    )
    assert release.patients == max(1.0, parts * COUNT_STEP)
    coordinates.write(start.values)
    lattice = mechanism.calibrated.lattice
    want = np.zeros(len(coordinates), dtype=np.int64)
    std = mechanism.sigma / lattice.step  # K - t = 1: every share is as wide as the whole
    for site, noise in zip(sites, noises, strict=True):
        stream = stream_of_round(noise, 0, hashlib.sha256().digest())
        share = rounded_gaussian(np.nextafter(std, np.inf), (len(coordinates),), stream)
        want += share + site.total(gradients, mechanism.clip, lattice, 0).numpy()
    np.testing.assert_array_equal(release.sums(0), want)


def test_the_noise_of_a_round_is_bound_to_everything_before_it(
    places, make_release, shared, sites, gradients
):
    """By hand: the key is of the secret, the claim, the round and the digests of earlier sums."""
    place = places()
    release = make_release(place.out, seed=3)
    claim = json.loads((place.private / "claim.json").read_bytes())
    secret, public = Secret.seeded(3), shared().start.public
    mechanism = PatientSum.of(release.plan.calibrate(public.weights), public)
    published = hashlib.sha256()
    walk = Trajectory(shared().start.values, release.settings, 3)
    for number in range(len(release)):
        shared().coordinates.write(walk.here.float())
        lattice = mechanism.calibrated.lattice
        parts = (site.total(gradients, mechanism.clip, lattice, number) for site in sites)
        total = sum(part.numpy() for part in parts)
        stream = stream_of_round(Noise(secret, (digest(claim),)), number, published.digest())
        np.testing.assert_array_equal(
            release.sums(number), mechanism.noisy_sum.perturb(total, stream)
        )
        published.update(hashlib.sha256(release.sums(number).tobytes()).digest())
        walk.move(mechanism.direction(release.sums(number), release.patients))


def test_a_number_of_patients_that_was_counted_has_noise(make_release, tmp_path):
    """In parts of a patient: under this seed, a whole number would be the true one."""
    release = make_release(tmp_path / "r", plan={"count": 0.1}, seed=1)
    assert release.patients % 1 > 0
