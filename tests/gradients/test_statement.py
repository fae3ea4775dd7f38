"""The statement of an adapter release: what it promises in numbers is what the plan costs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from canal.errors import ReleaseError
from canal.gradients.plan import AdapterPlan
from canal.privacy.randomness import SAMPLER
from canal.release.statement import Facts, noise_source, state

PLAN = AdapterPlan(epsilon=2.0, patients=100, parameters=1000, sites=2)
COHORTS = ("north", "south")


def noise(plan, private=True):
    return {"source": noise_source(plan, private=private), "sampler": SAMPLER.decode()}


def stated(plan=PLAN, weights=None, private=True):
    calibrated = plan.calibrate(weights)
    return state(calibrated, Facts.of(plan, noise(plan, private), COHORTS))


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_numbers_are_those_of_the_plan(relation):
    plan = replace(PLAN, relation=relation)
    statement, made = stated(plan), plan.calibrate()
    assert statement["unit"] == {"add-remove": "membership", "replace": "patient"}[relation]
    for unit in ("membership", "patient"):
        promise = statement["guarantee"][unit]
        assert promise["epsilon"] == made.guarantee.epsilon(plan.delta, unit)
        assert promise["rho"] == made.guarantee.rho(unit)
        assert promise["mu"] == made.guarantee.mu(unit)
    assert statement["guarantee"][plan.unit]["epsilon"] == pytest.approx(plan.epsilon)
    json.dumps(statement, allow_nan=False)


def test_two_relations_are_read_in_two_ways():
    """Two sentences that differ in a number alone would contradict each other."""
    promises = stated()["guarantee"]
    assert "1 in 100 outsiders" in promises["membership"]["reading"]
    assert "one of two people was a patient here" in promises["patient"]["reading"]
    assert "outsiders" not in promises["patient"]["reading"]


def test_rounds_cost_more_and_more():
    rows = stated()["epsilon_by_rounds"]
    assert [row["rounds"] for row in rows] == [1, 5, 10, 15, 20]
    for unit in ("membership", "patient"):
        assert [row[unit] for row in rows] == sorted(row[unit] for row in rows)
    assert rows[-1]["membership"] == pytest.approx(PLAN.epsilon)
    one = replace(PLAN, rounds=1)
    assert [row["rounds"] for row in stated(one)["epsilon_by_rounds"]] == [1]


def test_a_large_epsilon_protects_in_name_only():
    assert stated(replace(PLAN, epsilon=100.0))["protected"][0].startswith("In name only: every")
    assert stated()["protected"][0].startswith("Every patient of the training cohorts north, south")


@pytest.mark.parametrize(
    ("allocation", "private", "says"),
    [("flat", False, "seeded"), ("none", True, "no noise"), ("none", False, "no noise")],
)
def test_what_protects_nobody_says_so_everywhere(allocation, private, says):
    statement = stated(replace(PLAN, allocation=allocation), private=private)
    assert statement["stamp"].startswith("NOT PRIVATE")
    assert says in statement["stamp"]
    assert statement["protected"] == [f"{statement['stamp']}."]
    assert statement["epsilon_by_rounds"] == []
    for promise in statement["guarantee"].values():
        assert promise["epsilon"] is None
        assert not promise["protects"]


def test_the_lattice_that_is_stated_is_the_one_that_was_used():
    """Uneven noise may need a coarser one than even noise would."""
    plan = replace(PLAN, epsilon=0.5, allocation="channels", blocks=50, patients=25_000)
    weights = np.ones(50)
    weights[0] = 1e-8
    made = plan.calibrate(weights)
    assert made.lattice.step > plan.calibrate().lattice.step
    sentences = " ".join(stated(plan, weights)["mechanism"])
    assert f"lattice of step 2^{np.log2(made.lattice.step):.0f}" in sentences


def test_a_number_of_patients_is_stated_or_counted():
    assert "100, is what somebody stated" in " ".join(stated()["mechanism"])
    counted = replace(PLAN, count=0.1)
    sentences = " ".join(stated(counted)["mechanism"])
    assert "was counted with noise of" in sentences
    assert "stated" not in sentences
    assert any("number of patients was public" in each for each in stated()["assumptions"])
    assert not any("number of patients" in each for each in stated(counted)["assumptions"])
    assert stated(counted)["split"] == {"count": 0.1, "rounds": 0.9}


@pytest.mark.parametrize("directions", [0, 20])
def test_a_basis_tells_of_the_recipients_images(directions):
    sentences = " ".join(stated(replace(PLAN, directions=directions))["not_protected"])
    assert ("a basis holds directions of their gradients" in sentences) == bool(directions)
    assert ("scales and bounds were measured" in sentences) == (not directions)


def test_who_must_be_trusted():
    assert "every site's sum of clipped gradients" in " ".join(stated()["trust"])
    shares = replace(PLAN, trust="secure-sum", colluding=1)
    assert any("all but 1 of the sites" in each for each in stated(shares)["assumptions"])


@pytest.mark.parametrize("name", ["source", "sampler"])
def test_noise_of_unknown_origin_is_refused(name):
    with pytest.raises(ReleaseError, match="is not ours"):
        Facts.of(PLAN, noise(PLAN) | {name: "dice"}, COHORTS)


@pytest.mark.parametrize(
    ("allocation", "directions", "says"),
    [
        ("flat", 0, "is clipped as a whole, so that a patient moves a sum by at most 1 "),
        ("ellipsoid", 0, "rescaled channel by channel by public numbers and clipped as a whole"),
        ("ellipsoid", 20, "rescaled direction by direction by public numbers"),
        ("channels", 0, "clipped channel by channel to public bounds, so that a patient moves "),
        ("channels", 0, "moves every channel of a sum by at most 1 "),
        ("channels", 20, "clipped direction by direction"),
        ("channels", 20, "moves every direction of a sum by at most 1 "),
    ],
)
def test_how_far_a_patient_moves_what(allocation, directions, says):
    blocks = 20 if allocation == "channels" else 1
    plan = replace(PLAN, allocation=allocation, directions=directions, blocks=blocks)
    weights = np.ones(blocks) if blocks > 1 else None
    assert says in stated(plan, weights)["mechanism"][0]
