"""A statistics release: exact before noise, charged once, checked, and whole after any crash."""

import copy
import itertools
import json
import math
import os
import random
import secrets
from contextlib import suppress

import numpy as np
import pytest

from canal.errors import CanalError, DataError, ReleaseError
from canal.privacy import Secret
from canal.privacy.lattice import rounded_gaussian
from canal.privacy.randomness import SAMPLER, Stream
from canal.release.card import render
from canal.release.manifest import CARD, MANIFEST
from canal.release.mechanism import digest
from canal.release.store import open_release
from canal.release.verification import account, verdict, verify
from canal.statistics.mechanism import StatisticsMechanism, StatisticsSpec
from canal.statistics.patients import Patients
from canal.statistics.plan import COUNT, MOST_PATIENTS, StatisticsPlan
from canal.statistics.release import StatisticsRelease, create
from reading import Page
from release.place import SECRET, SITES, assert_charged_once, assert_nothing_is_half_done, keys_in
from voters import Charged, cohort, cohorts

PAID = {(site, unit) for site in SITES for unit in ("membership", "patient")}


def failed(place, *more):
    return [check.what for check in verify(place.out, *more) if check.passed is False]


def true_counts(sites, histogram, name):
    """By hand, in fractions."""
    found = np.zeros(len(histogram.bins))
    for site in sites:
        for images in site.images.values():
            for image in images:
                found[histogram.bin(image[name])] += 1 / len(images)
    return found


def test_without_noise_it_is_exact(places, make_release):
    place = places()
    release = make_release(place, allocation="none")
    assert not release.private
    assert release.statement["stamp"].startswith("NOT PRIVATE: no noise")
    assert failed(place) == []
    patients = sum(map(len, cohorts()))
    assert release.estimates[COUNT].patients.tolist() == [patients]
    for name, histogram in release.plan.histograms.items():
        off = true_counts(cohorts(), histogram, name) - release.estimates[name].patients
        # Truncated toward zero: less than a lattice step for a patient in a bin.
        assert (off > -1e-9).all()
        assert (off < patients * 2**-10).all()


def test_noise_is_keyed_by_secret_claim_and_name(places, make_release):
    """By hand, from the secret alone; and as wide as it says."""
    place = places()
    release = make_release(place, seed=3)
    claim = json.loads((place.private / "claim.json").read_bytes())
    sites, made = cohorts(), release.plan.calibrate()
    votes = [site.votes(release.plan, made.lattice) for site in sites]
    drawn = []
    for name, values in release.manifest.statistics.items():
        key = Secret.seeded(3).key(b"statistic", digest(claim), name.encode())
        std = made.sigma[name] / made.lattice.step
        noise = rounded_gaussian(std, (len(values),), Stream(key))
        assert values == (sum(each[name] for each in votes) + noise).tolist()
        drawn += (noise / std).tolist()
    # 34 standard normal values; a wrong width by half would be 1e-3 likely at these bounds.
    assert 0.6 < np.std(drawn) < 1.5


def test_shares_of_all_sites_are_simulated(places, make_release):
    place = places()
    with pytest.raises(ReleaseError, match="nothing to hide"):
        make_release(place, trust="secure-sum")
    release = make_release(place, trust="secure-sum", colluding=1, seed=3)
    assert failed(place) == []
    made, sites = release.plan.calibrate(), cohorts()
    assert release.estimates[COUNT].error == pytest.approx(made.sigma[COUNT] * math.sqrt(3 / 2))
    spec = StatisticsSpec(release.plan, SITES, "seed 3")
    mechanism, secret = StatisticsMechanism(spec), Secret.seeded(3)
    noises = [spec.noise_of_site(secret.at(site.cohort), site.claim) for site in sites]
    for name, values in release.manifest.statistics.items():
        noisy_sum = mechanism.noisy_sum(*mechanism.preliminaries(), name, None)
        parts = [
            noisy_sum.share(site.votes(release.plan, made.lattice)[name], noise.of_statistic(name))
            for site, noise in zip(sites, noises, strict=True)
        ]
        assert values == sum(parts).tolist()


def test_it_is_charged_and_says_so(places, make_release):
    place = places()
    release = make_release(place)
    assert release.private
    assert failed(place, place.ledger) == []
    assert_charged_once(place)
    charged = {(name, unit): rho for _, name, unit, rho, _ in place.charges()}
    assert charged.keys() == PAID
    promise = release.plan.calibrate().guarantee
    assert all(rho == promise.rho(unit) for (_, unit), rho in charged.items())
    found = verdict(place.out, place.ledger)
    assert found.lines()[0].startswith("A patient's epsilon: 1 where one is added or removed, 1.2")
    assert found.private
    priced = account(open_release(place.out))
    assert priced["units"]["membership"]["shares"] == pytest.approx(
        dict.fromkeys(release.plan.widths, 0.25)
    )
    assert priced["units"]["patient"]["shares"][COUNT] == 0
    assert "√2 (replaced)" in release.statement["mechanism"][0]
    assert release.manifest.noise["sampler"] == SAMPLER.decode()


def test_a_budget_that_is_used_up(places, make_release):
    place = places()
    place.ledger.set_budget(SITES, "membership", epsilon=1.0, delta=1e-5)
    with pytest.raises(CanalError, match="membership"):
        make_release(place, epsilon=2.0)
    assert not place.charges()
    make_release(place)


def test_an_image_of_two_cohorts_is_refused(places, make_release):
    north, south = cohort("north", 5), cohort("south", 5)
    shared = Patients("south", south.images, (*south.people[1:], north.people[0]))
    place = places()
    with pytest.raises(DataError, match="'north' is in cohort 'south' too"):
        make_release(place, sites=[north, shared], seed=1)
    with pytest.raises(ReleaseError, match="2 sites of different cohorts, but there are 1"):
        create(place.out, [north], StatisticsPlan(1.0, sites=2), seed=1)


def test_what_readers_make_of_it(places, make_release):
    release = make_release(places(), seed=5)
    for each in release.estimates.values():
        assert (each.possible >= 0).all()
        assert each.shares.sum() == pytest.approx(1)
        np.testing.assert_array_equal(each.possible > 0, each.patients > 0)
    few = [Patients(name, {}) for name in SITES]
    empty = make_release(places(), sites=few, allocation="none").estimates["area"]
    assert empty.shares.tolist() == [1 / 9] * 9


def test_the_card_draws_the_histograms(places, make_release):
    release = make_release(places(), seed=2)
    html = (release.path / CARD).read_text()
    assert html == render(release.manifest)
    text = " ".join(Page(html).text)
    for histogram in release.plan.histograms.values():
        assert all(label in text for label in histogram.bins)
    assert html.count("<rect") == sum(release.plan.widths.values()) - 1
    assert "No query" not in text
    assert "Shared initialisation" not in text


@pytest.fixture
def victim(places, make_release):
    place = places()
    make_release(place)
    return Charged(place)


@pytest.mark.parametrize("name", [MANIFEST, CARD])
def test_any_flipped_byte_is_found(name, victim):
    rng = random.Random(1)
    for _ in range(20):
        content = bytearray(victim.whole[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (victim.folder / name).write_bytes(content)
        assert victim.failed(ledger=False) == [{MANIFEST: "manifest", CARD: "card"}[name]]


STRANGE = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.0, 0.5, -2.5, 1e-300, 1e308),
    *("", "1", "patient", "../x", "\x00", [], [0], [0, 1], [[]], {}, {"a": 1}),
)


@pytest.mark.parametrize("seed", range(3))
def test_anything_anywhere_is_found(seed, victim):
    """One value of the manifest becomes another, all digests forged anew: never a crash."""
    rng = random.Random(seed)
    for _ in range(40):
        content = victim.content()
        inside, at = content, rng.choice(list(content))
        while isinstance(inside[at], dict | list) and inside[at] and rng.random() > 0.1:
            inside = inside[at]
            at = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        before = copy.deepcopy(inside[at])
        near = before * 2 if isinstance(before, int | float) and before else "something"
        inside[at] = rng.choice((near, rng.choice(STRANGE)))
        if json.dumps(inside[at]) == json.dumps(before):
            continue
        victim.forge(content)
        assert victim.failed(), f"{at}: {before!r} became {inside[at]!r}"
        with suppress(CanalError):
            account(StatisticsRelease.open(victim.folder))
        victim.heal()


def test_statistics_without_noise_are_found(victim):
    """Somebody took it off, and forged everything else: empty bins are zero."""
    content = victim.content()
    plan = StatisticsPlan.from_json(content["plan"])
    votes = [site.votes(plan, plan.calibrate().lattice) for site in cohorts()]
    content["statistics"] = {name: sum(each[name] for each in votes).tolist() for name in votes[0]}
    content["statistics"]["size"][2:] = [0] * 6
    victim.forge(content)
    assert "noise" in victim.failed(ledger=False)
    assert victim.failed() == ["noise", "ledger"]


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


def test_killed_anywhere_it_is_finished_with_the_same_bytes_and_one_charge(
    places, make_release, monkeypatch
):
    monkeypatch.setattr(secrets, "token_bytes", lambda count: SECRET)
    place = places()
    with monkeypatch.context() as counting:
        calls = killing(counting, -1)
        make_release(place)
    whole, count = place.files(), next(calls) - 1
    assert count > 10
    for point in range(1, count + 1):
        place = places()
        with monkeypatch.context() as patched:
            killing(patched, point)
            with pytest.raises(Killed):
                make_release(place)
        assert_nothing_is_half_done(place, whole)
        make_release(place)
        assert place.files() == whole
        assert_charged_once(place)
        assert not keys_in(place.out.parent)
        assert failed(place, place.ledger) == []


def test_statistics_that_were_drawn_stay(places, make_release, monkeypatch):
    """They are on disk before the card; a run that goes on does not draw others."""
    place = places()
    with monkeypatch.context() as patched:
        patched.setattr("canal.release.publish.render", lambda manifest: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_release(place)
    drawn = json.loads((place.private / "statistics.json").read_bytes())
    monkeypatch.setattr(Patients, "votes", lambda *_: pytest.fail("patients were read again"))
    assert make_release(place).manifest.statistics == drawn
    assert all(abs(value) < MOST_PATIENTS * 2**11 for each in drawn.values() for value in each)
