"""Releases of invented sites: mistakes that are put into what publishes, each found.

Noise is of the operating system. A simulation that is right fails once in 1e8.
"""

import pytest
import torch

from canal.attacks.simulation import simulate
from canal.features.mechanism import FeatureMechanism
from canal.features.plan import Plan
from canal.features.store import Release
from canal.federation import remote, session
from canal.federation.audit import simulate_across, usual
from canal.gradients.patients import Patients
from canal.gradients.plan import AdapterPlan
from canal.gradients.store import AdapterRelease
from canal.privacy import Ledger, Participants, Secret

SECURE = {"trust": "secure-sum", "colluding": 1}


def features(preset="honest", **choices):
    """A release of which only the plan is known, and only that is simulated."""
    made = object.__new__(Release)
    size = {"channels": 128, "released": 48, "grid": (4, 4)}
    people = choices.pop("people", 1)
    fitting = {"epsilon": 8.0, "delta": 1e-5, "participants": Participants(3, 40, people)} | size
    made.plan = Plan.preset(preset, **(fitting | choices))
    return made


def rounds(**choices):
    made = object.__new__(AdapterRelease)
    fitting = {"epsilon": 8.0, "patients": 20, "parameters": 100, "sites": 3}
    made.plan = AdapterPlan(**(fitting | choices))
    return made


@pytest.fixture
def faults(tmp_path):
    def found(release, play=simulate):
        checks = list(play(release, tmp_path))
        assert len(checks) == (5 if play is simulate else 2)
        return {check.what: check.detail for check in checks if check.passed is not True}

    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "release",
    [
        *(features(), features("paper"), features(**SECURE)),
        features("paper", unit="image", people=2),
        *(rounds(count=0.1), rounds(relation="replace"), rounds(allocation="channels")),
        *(rounds(allocation="ellipsoid", directions=20), rounds(**SECURE)),
    ],
    ids=lambda made: f"{made.kind}-{made.plan.unit}-{made.plan.allocation}-{made.plan.trust}",
)
def test_nothing_is_found_where_nothing_is_wrong(release, tmp_path):
    for number, play in enumerate((simulate, simulate_across)):
        if play is simulate or release.plan.unit != "image":
            (tmp_path / str(number)).mkdir()
            checks = list(play(release, tmp_path / str(number)))
            assert {check.what: check.detail for check in checks if check.passed is not True} == {}


def test_a_patient_who_counts_twice_at_one_site(faults, monkeypatch):
    """The first of a site, where only sums are ever seen."""
    real = Patients.gradients

    def twice(self, *arguments, **more):
        for number, rows in enumerate(real(self, *arguments, **more)):
            yield torch.cat([rows[:1], rows]) if number == 0 else rows

    monkeypatch.setattr(Patients, "gradients", twice)
    assert "simulation, loud" in faults(rounds())


@pytest.mark.slow
def test_a_teacher_who_counts_twice(faults, monkeypatch):
    real = FeatureMechanism.contribute

    def unfair(self, step, site, published):
        times = 2 if site.cohort == "south" else 1
        return {name: times * part for name, part in real(self, step, site, published).items()}

    monkeypatch.setattr(FeatureMechanism, "contribute", unfair)
    assert "simulation, loud" in faults(features())


@pytest.mark.slow
def test_an_answer_that_counts_twice_across_sites(faults, monkeypatch):
    real = remote.add_up_answers

    def unfair(trust, sites, given, *more):
        return real(trust, (*sites, sites[0]), given, *more)

    monkeypatch.setattr(remote, "add_up_answers", unfair)
    assert "simulation across sites" in faults(features(), simulate_across)


@pytest.mark.slow
def test_a_site_that_forgets_its_share(faults, monkeypatch):
    real = session.contribution

    def forgetful(mechanism, step, site, published, own):
        kept = None if site.cohort == "south" else own
        return real(mechanism, step, site, published, kept)

    monkeypatch.setattr(session, "contribution", forgetful)
    assert "simulation across sites" in faults(rounds(**SECURE), simulate_across)


@pytest.mark.slow
def test_a_secret_that_is_the_same_every_time(faults, monkeypatch):
    """No seed that anybody would try; that two releases share their noise shows it."""

    def same(cls, path, *more):
        return cls.keep(b"\x5a" * 32, path, *more)

    monkeypatch.setattr(Secret, "create", classmethod(same))
    # A ledger takes them for one release, too: their charges have one key.
    found = {"simulation, noise of two releases", "simulation, a second release"}
    assert set(faults(features())) == found


@pytest.mark.slow
def test_a_ledger_that_pays_for_everything(faults, monkeypatch):
    real = Ledger.set_budget

    def generous(self, cohort, unit, *, epsilon, **more):
        return real(self, cohort, unit, epsilon=10 * epsilon, **more)

    monkeypatch.setattr(Ledger, "set_budget", generous)
    assert set(faults(rounds())) == {"simulation, a second release"}


def test_which_are_usual():
    assert usual(_private(features("paper", unit="image"))) == (simulate,)
    assert usual(_private(features(participants=Participants(1, 40)))) == (simulate,)
    assert usual(_private(features())) == (simulate, simulate_across)
    assert usual(_private(rounds())) == (simulate, simulate_across)


def _private(made):
    made.manifest = type("Manifest", (), {"private": True})()
    return made
