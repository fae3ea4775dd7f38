"""The audit of a release of adapters: its folder, and what real patients paid.

Secrets are fixed; an alarm has a false-alarm rate of 1e-6 a bound, a check that which it states.
"""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from canal.attacks.audit import Auditor, audit
from canal.attacks.individual import first_patients, losses_of_patients
from canal.errors import InvalidValueError, ReleaseError
from canal.gradients import mechanism as mechanism_module
from canal.gradients.clip import Clip
from canal.gradients.gradients import Gradients
from canal.gradients.patients import CHUNK, Patients
from canal.gradients.start import share
from canal.gradients.store import AdapterRelease
from canal.learning.teacher import load_initialisation
from canal.privacy import Secret
from gradients.place import FEW

QUICK = {"draws": 2000, "seeds": 20}
RESEARCH = {"seed": 3}


def secrets(part):
    return Secret(Secret.seeded(10**6).key(part.encode()), private=True)


@pytest.fixture(scope="module")
def release(make_release, tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("audited") / "out", **RESEARCH)


@pytest.fixture
def network(init):
    """The initialisation; whoever measures changes it."""
    return load_initialisation(init)[0]


def test_a_release_that_is_right(places, make_release):
    place = places()
    auditor = Auditor(make_release(place.out, ledger=place.ledger), secrets=secrets, **QUICK)
    counted = []
    found = auditor.run(counted.append)
    assert sum(counted) == auditor.work
    assert found.holds
    assert [check.what for check in found.checks if check.passed is not True] == []
    assert [check.what for check in found.checks][-5:] == [
        *("whole numbers", "verify: noise", "verify: repeats"),
        *("birthdays of secrets", "secret"),
    ]
    assert [(each.unit, each.drawn, each.among) for each in found.outcomes] == [
        ("membership", 3, 3),
        ("patient", 3, 3),
    ]
    assert found.outcomes[0].claimed_epsilon == pytest.approx(8, rel=1e-6)
    assert found.outcomes[0].reached > 0.9
    assert found.stated["membership"] == pytest.approx(8, rel=1e-6)
    assert any(
        said.startswith("One patient added or removed, on all 3 rounds") for said in found.words()
    )
    assert not found.paper_falls_short


@pytest.mark.parametrize(
    ("allocation", "plan"),
    [
        ("ellipsoid", {}),
        ("channels", {"count": 0.05}),
        ("flat", {"trust": "secure-sum", "colluding": 1, "count": 0.05}),
        ("none", {"count": 0.05}),
    ],
)
def test_every_kind_of_plan(places, make_release, allocation, plan):
    options = {"not_private": True} if allocation == "none" else RESEARCH
    made = make_release(places().out, allocation, plan=plan, **options)
    found = audit(made, secrets=secrets, **QUICK)
    assert found.holds
    content = found.to_json()
    json.dumps(content, allow_nan=False)
    assert content["games"][0]["times"] == "rounds"
    if allocation == "none":
        assert all(math.isinf(each.gaussian_mu) for each in found.outcomes)
    else:
        assert found.outcomes[0].gaussian_mu > 0.85 * found.outcomes[0].claimed_mu
        assert "there is no secret to find" in str(found.words())


def test_directions_of_a_basis(places, make_release, init, recipient):
    there = share(init, recipient, FEW, "flat", directions=5, chunk=4)
    made = make_release(places().out, there=there, plan={"directions": 5}, **RESEARCH)
    found = audit(made, secrets=secrets, **QUICK)
    assert found.holds
    assert found.outcomes[0].gaussian_mu > 0.85 * found.outcomes[0].claimed_mu


def test_noise_used_again_in_the_folder_itself(places, make_release, monkeypatch):
    """No code is played for that, it is the folder that shows it."""
    real = mechanism_module.stream_of_round
    with monkeypatch.context() as patched:
        patched.setattr(mechanism_module, "stream_of_round", lambda noise, *_: real(noise, 0, b""))
        made = make_release(places().out, **RESEARCH)
    found = audit(made, secrets=secrets, **QUICK)
    # What the folder holds; the code that is played now is right again.
    assert "verify: repeats" in {check.what for check in found.checks if check.passed is False}
    assert not found.holds


def test_a_unit_that_rounds_do_not_have(release):
    with pytest.raises(InvalidValueError, match="of adapters; choose one of membership, patient"):
        audit(release, units=("image",))


def test_a_statement_that_does_not_follow_is_refused(release):
    statement = dict(release.manifest.statement, delta=1e-7)
    forged = AdapterRelease(release.path, replace(release.manifest, statement=statement))
    with pytest.raises(ReleaseError, match="does not follow"):
        audit(forged, secrets=secrets, **QUICK)


def parts_by_hand(release, network, people):
    """What all of these add to every round, the network written as it was then."""
    network = copy.deepcopy(network)
    coordinates = release.install(network)
    mechanism = release.mechanism(coordinates)
    gradients, lattice = Gradients(network, coordinates.names), mechanism.calibrated.lattice
    steps = mechanism.sigma / lattice.step
    sums = []
    for number, course in zip(range(len(release)), release.walk(coordinates), strict=False):
        coordinates.write(course.here.float())
        sums.append(people.total(gradients, mechanism.clip, lattice, number).numpy() / steps)
    return np.array(sums)


def test_what_every_patient_paid_is_what_a_sum_is_moved_by(release, sites, network):
    """Against sums over the site with a patient and without."""
    site = sites[1]
    people, among = first_patients(release, site.cohort, site.arrays, None)
    assert among == len(people) == len(site)
    everybody = parts_by_hand(release, network, people)
    paid = []
    for who in dict.fromkeys(site.arrays.patients.values()):
        others = Patients(site.cohort, site.arrays.without(who))
        paid.append(np.linalg.norm(everybody - parts_by_hand(release, network, others)))
    counted = []
    found = losses_of_patients(release, network, people, progress=counted.append)
    assert sum(counted) == len(site.arrays.ids) * len(release)
    assert found.mu == pytest.approx(max(paid))
    assert found.median == pytest.approx(np.median(paid))
    assert found.holds
    assert 0 < found.longest <= 1
    assert found.allowed == pytest.approx(1.666, abs=1e-3)
    assert f"Of {among} patients of {site.cohort}, the one that moved" in found.words()
    assert "for the hospital alone" in found.words()
    assert found.to_json()["median"]["mu"] == found.median


def test_some_of_the_patients_and_their_count(places, make_release, sites, network):
    made = make_release(places().out, plan={"count": 0.2, "rounds": 1}, **RESEARCH)
    people, among = first_patients(made, "south", sites[0].arrays, 2)
    assert (len(people), among) == (2, len(sites[0]))
    first, _ = first_patients(made, "south", sites[0].arrays, 1)
    rounds = parts_by_hand(made, network, first)
    found = losses_of_patients(made, network, first, among)
    sigma = made.plan.calibrate(np.ones(1)).count_sigma
    assert found.mu == pytest.approx(math.hypot(np.linalg.norm(rounds), 1 / sigma))
    assert f"Of 1 of {among} patients of south" in found.words()
    with pytest.raises(InvalidValueError, match="most = 0 must be at least 1"):
        first_patients(made, "south", sites[0].arrays, 0)
    assert people.chunk == CHUNK
    assert first_patients(made, "south", sites[0].arrays, 1, chunk=5)[0].chunk == 5


def test_a_patient_beyond_the_bound_is_found(release, sites, network, monkeypatch):
    """In one block of one round that is enough, however little was paid in all."""
    real = Clip.apply
    monkeypatch.setattr(
        Clip, "apply", lambda self, gradients, lattice: 3 * real(self, gradients, lattice)
    )
    people, _ = first_patients(release, "north", sites[0].arrays, 1)
    found = losses_of_patients(release, network, people)
    assert not found.holds
    assert "bounds long, and 1 is stated" in found.words()
    assert not replace(found, longest=1.0).holds
    assert "above the 8 that the accounting allows" in replace(found, longest=1.0).words()


def test_without_noise_everybody_pays_more_than_any_epsilon(places, make_release, sites, network):
    made = make_release(places().out, "none", not_private=True, plan={"rounds": 1})
    found = losses_of_patients(made, network, first_patients(made, "north", sites[0].arrays, 1)[0])
    assert found.holds  # nothing was claimed
    assert "more than any epsilon; there is no noise" in found.words()
    json.dumps(found.to_json(), allow_nan=False)


def test_another_network_is_refused(release, sites, network):
    import torch

    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    with pytest.raises(ReleaseError, match="not the initialisation that the release started from"):
        losses_of_patients(release, network, sites[0])
