"""The audit of a statistics release: what is stated is nearly reached, and mistakes are found.

Secrets are fixed; an alarm has a false-alarm rate of 1e-6 a bound, a check that which it states.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from canal.attacks.audit import Auditor, audit
from canal.privacy import Secret
from canal.release.noisy_sum import NoisySum
from canal.statistics import patients as patients_module
from canal.statistics.mechanism import StatisticsMechanism
from release.place import SITES

QUICK = {"draws": 20_000, "seeds": 20}


def secrets(part):
    return Secret(Secret.seeded(10**6).key(part.encode()), private=True)


@pytest.mark.parametrize(
    "choices", [{}, {"relation": "replace"}, {"trust": "secure-sum", "colluding": 1}]
)
def test_a_release_that_is_right(places, make_release, choices):
    place = places()
    place.ledger.set_budget(SITES, "patient", epsilon=50.0, delta=1e-5)
    seed = 3 if "trust" in choices else None  # sites of one process have no secret from it
    auditor = Auditor(make_release(place, seed=seed, **choices), secrets=secrets, **QUICK)
    counted = []
    found = auditor.run(counted.append)
    assert sum(counted) == auditor.work
    assert found.holds, found.words()
    assert [each.unit for each in found.verdicts] == ["membership", "patient"]
    for verdict in found.verdicts if seed is None else ():
        assert set(verdict.stated) >= {"the guarantee", "a sentence", "the table by releases"}
        assert verdict.reached > 0.95, verdict.words()
    parts = [each.what for each in found.outcomes if each.part and each.unit == "membership"]
    assert parts == ["count", "area", "intensity", "size"]
    json.dumps(found.to_json(), allow_nan=False)


def test_noise_that_is_seeded_or_is_none(places, make_release):
    assert audit(make_release(places(), seed=3), secrets=secrets, **QUICK).holds
    found = audit(make_release(places(), allocation="none"), secrets=secrets, **QUICK)
    assert found.holds  # nothing was claimed
    assert all(math.isinf(each.gaussian_mu) for each in found.outcomes)


@pytest.fixture
def faults(places, make_release):
    """What an audit of a release finds at fault now."""
    release = make_release(places(), seed=3)

    def found():
        told = audit(release, secrets=secrets, units=("membership",), **QUICK)
        failed = {check.what for check in told.checks if check.passed is False}
        return failed | {each.what for each in told.outcomes if each.refuted}

    return found


def test_nothing_is_found_where_nothing_is_wrong(faults):
    assert faults() == set()


def test_a_patient_who_has_a_vote_for_every_image(faults, monkeypatch):
    def generous(images, plan, lattice):
        one = round(1 / lattice.step)
        votes = {"count": np.array([one])}
        for name, each in plan.histograms.items():
            bins = [each.bin(image[name]) for image in images]
            votes[name] = np.bincount(bins, minlength=len(each.bins)) * one
        return votes

    monkeypatch.setattr(patients_module, "vote", generous)
    assert {"area", "distance of a membership"} <= faults()


def test_a_site_that_counts_twice(faults, monkeypatch):
    real = StatisticsMechanism.contribute

    def unfair(self, step, site, published):
        times = 2 if site.cohort == "site 2" else 1
        return {name: times * part for name, part in real(self, step, site, published).items()}

    monkeypatch.setattr(StatisticsMechanism, "contribute", unfair)
    assert {"count", "size", "distance of a membership"} <= faults()


def test_a_histogram_in_the_clear(faults, monkeypatch):
    real = NoisySum.perturb

    def careless(self, total, stream):
        return np.asarray(total) if self.name == "size" else real(self, total, stream)

    monkeypatch.setattr(NoisySum, "perturb", careless)
    assert {"size", "width of the noise, membership"} <= faults()


def test_noise_of_half_the_width(faults, monkeypatch):
    real = NoisySum.perturb

    def narrow(self, total, stream):
        return real(replace(self, std=self.std / 2), total, stream)

    monkeypatch.setattr(NoisySum, "perturb", narrow)
    names = {"count", "area", "intensity", "size"}
    assert {*names, "width of the noise, membership"} <= faults()


def test_one_noise_for_all_statistics(faults, monkeypatch):
    real = Secret.key
    monkeypatch.setattr(Secret, "key", lambda self, purpose, *more: real(self, purpose, *more[:-1]))
    assert "noise of different values, membership" in faults()
