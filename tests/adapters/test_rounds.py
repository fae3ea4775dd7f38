"""A release of adapters: paid for first, the same after any interruption, and charged once."""

import hashlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from canal.adapters.charges import start_ledger
from canal.adapters.cohorts import LocalCohorts
from canal.adapters.mechanism import COUNT_STEP, Mechanism
from canal.adapters.patients import Patients
from canal.adapters.rounds import aggregate
from canal.adapters.store import AdapterRelease
from canal.adapters.update import Trajectory, UpdateSettings
from canal.adapters.verification import account, verify
from canal.errors import BudgetExceededError, LedgerError, ReleaseError
from canal.privacy import Ledger, Secret, rounded_gaussian
from canal.release.agreement import digest
from canal.release.noise import Noise

SECRET = hashlib.sha256(b"thirty-two bytes, the same in every run").digest()
COHORTS = ("dermoscopy", "ultrasound")
PAIRS = {(cohort, unit) for cohort in COHORTS for unit in ("membership", "patient")}
WORKER = Path(__file__).parent / "rounds_worker.py"


class Place:
    """Where one release is made: `out`, the private folder beside it, and a ledger."""

    def __init__(self, folder):
        folder.mkdir()
        self.out, self.private = folder / "release", folder / "release.private"
        self.secret = self.private / "secret"
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.ledger.set_budget(COHORTS, "membership", epsilon=8.0, delta=1e-5)

    def files(self):
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def charges(self, action="reserve"):
        """How often each release was charged to each cohort under each unit, or finished there."""
        rows = [row for row in self.ledger.verify() if row.action == action]
        return Counter((row.key, row.cohort, row.unit, row.rho, row.draws) for row in rows)


@pytest.fixture
def places(tmp_path):
    """A new place each time it is called."""
    numbers = itertools.count()
    return lambda: Place(tmp_path / f"place-{next(numbers)}")


def assert_charged_once(place):
    made = place.charges()
    assert {(cohort, unit) for _, cohort, unit, *_ in made} == PAIRS
    assert set(made.values()) == {1}
    assert len({key for key, *_ in made}) == 1
    assert place.charges("commit") == made


@pytest.mark.parametrize(
    ("allocation", "choices"),
    [
        ("flat", {"count": 0.05}),
        ("ellipsoid", {"conversion": "paper"}),
        ("channels", {"relation": "replace", "epsilon": 20.0}),
    ],
)
def test_a_release_that_anyone_can_check(allocation, choices, places, make_release, make_plan):
    place, plan = places(), make_plan(allocation, **choices)
    ledger = Ledger(place.out.with_name("own.sqlite"))
    start_ledger(ledger, plan, COHORTS)
    told = []
    release = make_release(
        place.out, allocation, plan=choices, ledger=ledger.path, report=told.append
    )
    checks = verify(place.out, ledger)
    assert [check.what for check in checks if check.passed is not True] == []
    assert len(checks) == 7
    assert release.private
    assert release.statement["stamp"] == ""

    price = account(release)
    made = plan.calibrate(release.manifest.statistics["weights"])
    for unit in ("membership", "patient"):
        epsilon = made.guarantee.epsilon(plan.delta, unit, plan.conversion)
        assert price["units"][unit]["epsilon"] == pytest.approx(epsilon)
        assert release.statement["guarantee"][unit]["epsilon"] == pytest.approx(epsilon)
        assert price["units"][unit]["rho"] == pytest.approx(made.guarantee.rho(unit))
    mine = price["units"][plan.unit]["epsilon"]
    assert (1 - 1e-9) * plan.epsilon <= mine <= plan.epsilon

    rows = [row for row in ledger.rows() if row.action == "reserve"]
    assert {(row.cohort, row.unit) for row in rows} == PAIRS
    for row in rows:
        assert row.rho == made.guarantee.rho(row.unit)
        assert row.draws == made.guarantee.draws(row.unit)
    # Told after every round: what it cost so far, up to all of it.
    assert [each.number for each in told] == [1, 2, 3]
    assert [each.epsilon for each in told] == sorted(each.epsilon for each in told)
    assert told[-1].epsilon == pytest.approx(mine)


def test_made_again_it_is_the_same_and_free(places, make_release):
    place = places()
    first = make_release(place.out, ledger=place.ledger)
    files, rows = place.files(), place.ledger.rows()
    again = make_release(place.out, ledger=place.ledger)
    assert (place.files(), place.ledger.rows()) == (files, rows)
    assert again.manifest == first.manifest
    assert_charged_once(place)


def test_nothing_private_is_published_or_left(places, make_release, sites):
    """The secret is for its owner while it is needed, and gone afterwards."""
    place, seen = places(), set()

    def look(told):
        seen.add((place.secret.read_bytes(), place.secret.stat().st_mode & 0o777))

    make_release(place.out, plan={"count": 0.05}, ledger=place.ledger, report=look)
    ((secret, mode),) = seen
    assert (len(secret), mode) == (32, 0o600)
    assert place.private.stat().st_mode & 0o777 == 0o700
    digests = [bytes.fromhex(site.digest) for site in sites]
    claim = (place.private / "claim.json").read_bytes()
    assert all(each.hex().encode() in claim for each in digests)  # so this search finds them
    assert sorted(path.name for path in place.private.iterdir()) == [
        *("claim.json", "finished", "lock", "mechanism.json", "public.json"),
    ]
    for path in [*place.out.iterdir(), *place.private.iterdir()]:
        assert secret not in path.read_bytes()
        assert secret.hex().encode() not in path.read_bytes()
    for content in place.files().values():
        for each in digests:
            assert each not in content
            assert each.hex().encode() not in content
    patients = AdapterRelease.open(place.out).patients
    assert patients != sum(len(site) for site in sites), "counted with noise"


class Killed(BaseException):
    """What nothing in the code expects."""


def killing(monkeypatch, at):
    """Die at this call of fsync, which is everywhere something must have reached the disk."""
    calls, fsync = itertools.count(1), os.fsync

    def counted(handle):
        if next(calls) == at:
            raise Killed
        fsync(handle)

    monkeypatch.setattr(os, "fsync", counted)
    return calls


def assert_nothing_is_half_done(place, reference):
    """Published whole or not at all; what was paid for can still be made."""
    if place.out.exists():
        assert place.files() == reference
    elif place.charges():
        assert place.secret.read_bytes() == SECRET
    if place.charges("commit"):
        assert place.out.exists()


COUNTED = {"count": 0.05, "rounds": 2}


@pytest.fixture
def reference(places, make_release, monkeypatch):
    """What a run with this secret publishes when nobody stops it, and how often it syncs."""
    monkeypatch.setattr(secrets, "token_bytes", lambda count: SECRET)
    place = places()
    with monkeypatch.context() as counting:
        calls = killing(counting, -1)
        make_release(place.out, plan=COUNTED, ledger=place.ledger)
    assert_charged_once(place)
    return place.files(), next(calls) - 1


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))]
)
def test_killed_anywhere_the_same_arguments_finish_it(
    part, places, make_release, reference, monkeypatch
):
    """At every sync, in turn: the same bytes in the end, and one charge."""
    whole, count = reference
    assert count > 15
    for point in range(1 + part, count + 1, 4):
        place = places()
        with monkeypatch.context() as patched:
            killing(patched, point)
            with pytest.raises(Killed):
                make_release(place.out, plan=COUNTED, ledger=place.ledger)
        assert_nothing_is_half_done(place, whole)
        make_release(place.out, plan=COUNTED, ledger=place.ledger)
        assert place.files() == whole
        assert_charged_once(place)
        assert not place.secret.exists()
        assert all(check.passed for check in verify(place.out, place.ledger))


@pytest.mark.parametrize("images", [1, 9, 15])
def test_killed_while_patients_are_asked(images, places, make_release, make_cohorts, reference):
    """In the middle of a round; and once more after the first one of the next run."""
    place, seen = places(), itertools.count(1)

    def progress(count):
        if next(seen) * 4 > images:
            raise Killed

    def report(told):
        raise Killed

    arguments = {"plan": COUNTED, "ledger": place.ledger}
    with pytest.raises(Killed):
        make_release(place.out, cohorts=make_cohorts(progress=progress), **arguments)
    assert_nothing_is_half_done(place, reference[0])
    with pytest.raises(Killed):
        make_release(place.out, report=report, **arguments)
    assert not place.out.exists()
    make_release(place.out, **arguments)
    assert place.files() == reference[0]
    assert_charged_once(place)


def test_rounds_that_were_done_are_not_asked_for_again(places, make_release, make_cohorts):
    place, asked = places(), []

    def stop(told):
        if told.number == 2:
            raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, report=stop)
    told = []
    make_release(
        place.out,
        ledger=place.ledger,
        cohorts=make_cohorts(progress=asked.append),
        report=told.append,
    )
    assert sum(asked) == 12, "one round of twelve images"
    assert [each.number for each in told] == [1, 2, 3]


@pytest.mark.slow
def test_killed_for_good(tmp_path, init):
    """`kill -9` of a process of its own, while it pays, asks and publishes."""

    def run(place, kill_at=0):
        return subprocess.run(
            [sys.executable, WORKER, place.out, place.ledger.path, init, str(kill_at)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    whole = Place(tmp_path / "whole")
    done = run(whole)
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    reference = whole.files()
    for point in (count // 3, count // 2, count - 3):
        place = Place(tmp_path / f"killed at {point}")
        assert run(place, point).returncode == -signal.SIGKILL
        assert_nothing_is_half_done(place, reference)
        assert run(place).returncode == 0
        assert place.files() == reference
        assert_charged_once(place)


def test_other_arguments_are_refused_where_a_release_was_begun(
    places, make_release, make_cohorts, shared, sites
):
    place = places()
    start, network = shared().start, shared().network

    def stop(told):
        raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, report=stop)
    fewer = replace(sites[1].arrays, digest="one image less")
    others = [sites[0], Patients("ultrasound", fewer, chunk=4)]
    for change, what in (
        ({"plan": {"epsilon": 4.0}}, "plan"),
        ({"plan": {"patients": 13}}, "plan"),
        ({"plan": {"rounds": 4}}, "plan"),
        ({"seed": 3}, "noise"),
        ({"start": replace(start, update=UpdateSettings(step=0.1))}, "update"),
        ({"start": replace(start, initialisation="0" * 64)}, "initialisation"),
        ({"cohorts": LocalCohorts(others, network, shared().coordinates)}, "patients"),
        ({"cohorts": LocalCohorts(sites[::-1], network, shared().coordinates)}, "cohorts, patien"),
    ):
        rows = place.ledger.rows()
        with pytest.raises(ReleaseError, match=f"an unfinished release with another {what}"):
            make_release(place.out, **{"ledger": place.ledger} | change)
        assert place.ledger.rows() == rows
    make_release(place.out, ledger=place.ledger)
    assert_charged_once(place)
    with pytest.raises(ReleaseError, match="holds a release with another plan"):
        make_release(place.out, ledger=place.ledger, plan={"epsilon": 4.0})


def test_what_a_ledger_refused_may_be_asked_for_otherwise(places, make_release, make_cohorts):
    """No patient is asked for a release that cannot be paid, and nothing is charged."""
    place = places()
    cohorts = make_cohorts(progress=lambda count: pytest.fail("a patient was asked"))
    with pytest.raises(BudgetExceededError) as caught:
        make_release(place.out, ledger=place.ledger, cohorts=cohorts, plan={"epsilon": 8.1})
    assert caught.value.unit == "membership"
    assert not place.charges()
    assert not place.out.exists()
    make_release(place.out, ledger=place.ledger, plan={"epsilon": 5.0})
    assert {(cohort, unit) for _, cohort, unit, *_ in place.charges()} == PAIRS


def test_a_second_release_is_paid_for_too(places, make_release):
    place = places()
    make_release(place.out, ledger=place.ledger, plan={"epsilon": 7.0})
    second = place.out.with_name("second")
    with pytest.raises(BudgetExceededError):
        make_release(second, ledger=place.ledger, plan={"epsilon": 5.0})
    make_release(second, ledger=place.ledger, plan={"epsilon": 3.0})
    assert set(place.charges().values()) == {1}
    assert len({key for key, *_ in place.charges()}) == 2
    one, other = (AdapterRelease.open(path) for path in (place.out, second))
    assert not np.array_equal(one.sums(0), other.sums(0))


def test_a_private_release_needs_a_ledger_that_is_there(places, make_release, make_cohorts):
    place = places()
    cohorts = make_cohorts(progress=lambda count: pytest.fail("a patient was asked"))
    with pytest.raises(ReleaseError, match="charged to a ledger"):
        make_release(place.out, cohorts=cohorts)
    with pytest.raises(LedgerError):
        make_release(place.out, cohorts=cohorts, ledger=place.out.with_name("none.sqlite"))
    empty = Ledger(place.out.with_name("empty.sqlite"))
    with pytest.raises(LedgerError, match="has no membership budget"):
        make_release(place.out, cohorts=cohorts, ledger=empty)
    assert not place.out.exists()


def test_a_research_run_says_so_and_is_not_charged(places, make_release):
    place = places()
    rows = place.ledger.rows()
    release = make_release(place.out, seed=3, ledger=place.ledger, plan={"count": 0.05})
    assert place.ledger.rows() == rows
    assert not release.private
    assert release.statement["stamp"].startswith("NOT PRIVATE")
    assert release.manifest.ledger is None
    assert release.statement["guarantee"]["membership"]["epsilon"] is None
    assert b"NOT PRIVATE" in (place.out / "card.html").read_bytes()
    assert all(
        b"NOT PRIVATE" in content
        for name, content in place.files().items()
        if name.endswith(".safetensors")
    )
    assert [check.what for check in verify(place.out) if check.passed is False] == []
    assert account(release)["units"]["membership"]["epsilon"] is None
    other = places()
    make_release(other.out, seed=3, plan={"count": 0.05})
    assert other.files() == place.files(), "the same seed, the same bytes"


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
    mechanism = Mechanism.of(release.plan.calibrate(public.weights), public)
    shared().coordinates.write(shared().start.values)
    lattice = mechanism.calibrated.lattice
    plain = sum(site.total(gradients, mechanism.clip, lattice, 0).numpy() for site in sites)
    np.testing.assert_array_equal(release.sums(0), plain)


def test_a_patient_more_or_less_moves_a_release_by_that_patients_part(
    places, make_release, shared, sites, gradients
):
    """From end to end: two releases with the same draws, with a patient and without."""
    coordinates, (first, second) = shared().coordinates, sites
    who, *_ = dict.fromkeys(second.arrays.groups.values())
    fewer = Patients(second.cohort, second.arrays.without(who), chunk=4)
    mine = [name for name in second.arrays.ids if second.arrays.groups[name] == who]
    alone = Patients(second.cohort, second.arrays.rows(mine), chunk=4)
    made = [
        make_release(
            places().out,
            cohorts=LocalCohorts(some, shared().network, coordinates, paired=True),
            seed=3,
        )
        for some in ((first, second), (first, fewer))
    ]
    public = shared().start.public
    mechanism = Mechanism.of(made[0].plan.calibrate(public.weights), public)
    coordinates.write(shared().start.values)
    lattice = mechanism.calibrated.lattice
    part = alone.total(gradients, mechanism.clip, lattice, 0).numpy()
    assert np.abs(part).max() > 0
    difference = made[0].sums(0).astype(np.int64) - made[1].sums(0)
    np.testing.assert_array_equal(difference, part)
    assert sum(n * n for n in difference.tolist()) <= round(1 / lattice.step) ** 2


def test_arms_of_an_experiment_share_their_draws(places, make_release, make_cohorts, shared):
    """Twice the noise is the same noise, twice as loud; never for anybody's protection."""
    made = [
        make_release(places().out, cohorts=make_cohorts(paired=True), seed=3, plan=plan)
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
        make_release(places().out, cohorts=make_cohorts(paired=True), ledger=places().ledger)


def test_shares_of_all_sites_are_rehearsed(places, make_release, make_cohorts, shared, sites):
    """What is published is the sum of what every site would send; count and rounds."""
    place = places()
    choices = {"trust": "secure-sum", "colluding": 1, "count": 0.05}
    with pytest.raises(ReleaseError, match="nothing to hide"):
        make_release(place.out, plan=choices, ledger=place.ledger)
    agreed = []

    class Noted(LocalCohorts):
        def consider(self, agreement, mechanism, secret, key):
            agreed.append(agreement)
            super().consider(agreement, mechanism, secret, key)

    start, coordinates = shared().start, shared().coordinates
    cohorts = Noted(sites, shared().network, coordinates)
    release = make_release(place.out, plan=choices, seed=3, cohorts=cohorts)
    assert [check.what for check in verify(place.out) if check.passed is False] == []
    public = start.public
    mechanism = Mechanism.of(release.plan.calibrate(public.weights), public)
    (agreement,) = agreed
    noises = [
        agreement.noise_of_site(Secret.seeded(3).at(site.cohort), [site.cohort, site.digest])
        for site in sites
    ]
    parts = sum(
        mechanism.count(len(site), noise) for site, noise in zip(sites, noises, strict=True)
    )
    assert release.patients == max(1.0, parts * COUNT_STEP)
    coordinates.write(start.values)
    lattice = mechanism.calibrated.lattice
    want = np.zeros(len(coordinates), dtype=np.int64)
    std = mechanism.sigma / lattice.step  # K - t = 1: every share is as wide as the whole
    for site, noise in zip(sites, noises, strict=True):
        stream = noise.of_round(0, hashlib.sha256().digest())
        share = rounded_gaussian(np.nextafter(std, np.inf), (len(coordinates),), stream)
        want += share + site.total(cohorts.gradients, mechanism.clip, lattice, 0).numpy()
    np.testing.assert_array_equal(release.sums(0), want)


def test_the_noise_of_a_round_is_bound_to_everything_before_it(
    places, make_release, make_cohorts, shared, sites, gradients
):
    """By hand: the key is of the secret, the claim, the round and the digests of earlier sums."""
    place = places()
    release = make_release(place.out, seed=3)
    claim = json.loads((place.private / "claim.json").read_bytes())
    secret, public = Secret.seeded(3), shared().start.public
    mechanism = Mechanism.of(release.plan.calibrate(public.weights), public)
    published = hashlib.sha256()
    walk = Trajectory(shared().start.values, shared().start.update, 3)
    for number in range(len(release)):
        total = make_cohorts().total(mechanism, number, walk.here.float(), None, published.digest())
        stream = Noise(secret, (digest(claim),)).of_round(number, published.digest())
        np.testing.assert_array_equal(release.sums(number), mechanism.perturb(total, stream))
        published.update(hashlib.sha256(release.sums(number).tobytes()).digest())
        walk.move(mechanism.direction(release.sums(number), release.patients))


def test_a_count_that_was_drawn_stays(places, make_release, monkeypatch):
    """It is on disk before the first round; a run that goes on does not draw another."""
    place = places()

    def stop(told):
        raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, plan={"count": 0.05}, report=stop)
    drawn = json.loads((place.private / "statistics.json").read_bytes())["patients"]
    monkeypatch.setattr(
        LocalCohorts, "count", lambda *_: pytest.fail("patients were counted again")
    )
    release = make_release(place.out, ledger=place.ledger, plan={"count": 0.05})
    assert release.patients == max(1.0, drawn * COUNT_STEP)


def test_a_stated_number_of_patients_is_taken_as_it_is(places, make_release):
    place = places()
    release = make_release(place.out, seed=1, plan={"patients": 500})
    assert release.patients == 500
    assert any("500" in sentence for sentence in release.statement["mechanism"])


def test_a_plan_for_other_sites_is_refused(places, make_release):
    place = places()
    with pytest.raises(ReleaseError, match="for 3 sites; there are 2"):
        make_release(place.out, ledger=place.ledger, plan={"sites": 3})
    assert not place.charges()


def test_noise_that_protects_somebody_is_never_paired(places, make_cohorts, shared, make_plan):
    place = places()
    with pytest.raises(ReleaseError, match="never drawn twice"):
        aggregate(
            *(place.out, make_cohorts(), shared().start, make_plan()),
            ledger=place.ledger,
            paired=True,
        )


def test_sites_of_this_process_are_charged_to_some_ledger(places, make_cohorts, shared, make_plan):
    with pytest.raises(ReleaseError, match="no ledger of their own"):
        aggregate(places().out, make_cohorts(), shared().start, make_plan())


def test_numbers_that_were_measured_again_in_other_bits_are_not_taken(places, make_release, shared):
    """Other threads, another machine: a release that was begun is finished with its own numbers."""
    place = places()

    def stop(told):
        raise Killed

    with pytest.raises(Killed):
        make_release(place.out, ledger=place.ledger, report=stop)
    real = shared().start
    other = replace(real.public, length=real.public.length * (1 + 1e-9))
    object.__setattr__(shared(), "start", replace(real, public=other))
    try:
        release = make_release(place.out, ledger=place.ledger)
    finally:
        object.__setattr__(shared(), "start", real)
    assert release.manifest.statistics["length"] == real.public.length
    assert len({key for key, *_ in place.charges()}) == 1
    assert set(place.charges().values()) == {1}
