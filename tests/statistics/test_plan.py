"""The plan of a statistics release: how far a patient moves it, and what that costs."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canal.errors import CanalError, InvalidValueError
from canal.privacy.lattice import Lattice
from canal.statistics.patients import Patients, vote
from canal.statistics.plan import COUNT, MOST_PATIENTS, NO_LABEL, NO_LESION, StatisticsPlan

PLAN = StatisticsPlan(1.0)
LATTICES = st.builds(lambda power: Lattice(2.0**power), st.integers(-16, 0))

images = st.fixed_dictionaries(
    {
        "area": st.sampled_from([NO_LABEL, NO_LESION]) | st.floats(0, 1),
        "intensity": st.floats(0, 255),
        "size": st.integers(1, 100_000),
    }
)
people = st.lists(images, min_size=1, max_size=7)


@st.composite
def plans(draw):
    """Any plan, from strict to absurdly loose."""
    weights = np.array(draw(st.lists(st.floats(0.05, 1), min_size=4, max_size=4)))
    trust = draw(st.sampled_from(["trusted", "secure-sum"]))
    sites = draw(st.integers(2, 9))
    return StatisticsPlan(
        epsilon=10 ** draw(st.floats(-2, 2)),
        delta=10 ** draw(st.floats(-9, -2)),
        sites=sites,
        relation=draw(st.sampled_from(["add-remove", "replace"])),
        conversion=draw(st.sampled_from(["exact", "paper"])),
        split=tuple((weights / weights.sum()).tolist()),
        trust=trust,
        colluding=draw(st.integers(0, sites - 1)) if trust == "secure-sum" else 0,
    )


@given(people, people, LATTICES)
def test_a_vote_moves_no_sum_further_than_is_accounted_for(one, other, lattice):
    """In integers, so exactly: added or removed, and replaced."""
    whole = round(1 / lattice.step)
    mine, theirs = vote(one, PLAN, lattice), vote(other, PLAN, lattice)
    assert mine[COUNT] == theirs[COUNT] == whole
    for name in PLAN.histograms:
        v, w = (part[name].astype(object) for part in (mine, theirs))
        assert min(v) >= 0
        assert sum(v) <= whole
        assert sum(v * v) <= whole**2
        assert sum((v - w) ** 2) <= 2 * whole**2


@given(st.lists(people, min_size=1, max_size=6), st.randoms())
def test_a_sum_without_a_patient_is_the_sum_less_that_patients_vote(everybody, random):
    lattice = Lattice(2.0**-10)
    names = [f"patient {number}" for number in range(len(everybody))]
    site = Patients("north", dict(zip(names, everybody, strict=True)))
    gone = random.choice(names)
    rest = Patients("north", {who: shown for who, shown in site.images.items() if who != gone})
    mine = vote(site.images[gone], PLAN, lattice)
    with_them, without = site.votes(PLAN, lattice), rest.votes(PLAN, lattice)
    for name, part in mine.items():
        np.testing.assert_array_equal(with_them[name] - without[name], part)


def test_the_stated_distances_are_reached():
    """By votes in one bin, and in two; no larger number is needed, and no smaller one is true."""
    lattice, one = Lattice(2.0**-10), 2**10
    dark, bright = ([{"area": NO_LABEL, "intensity": value, "size": 1}] for value in (0.0, 255.0))
    v, w = (vote(shown, PLAN, lattice)["intensity"] for shown in (dark, bright))
    assert np.linalg.norm(v) == one
    assert np.linalg.norm(v - w) == pytest.approx(math.sqrt(2) * one, rel=1e-12)
    for event in PLAN.calibrate().guarantee.events:
        assert event.exposure("membership").sensitivity == 1
        far = event.exposure("patient").sensitivity
        assert far == 0 if event.name == COUNT else math.sqrt(2) < far < math.sqrt(2) * (1 + 1e-15)


def test_more_patients_than_a_site_may_have_are_cut_off():
    site = Patients("north", {})
    most = MOST_PATIENTS // 4
    crowd = [{"area": 0.5, "intensity": 9.0, "size": 99}]
    site = Patients("north", {f"{number}": crowd for number in range(3)})
    plan, lattice = StatisticsPlan(1.0, sites=4), Lattice(2.0**-10)
    assert site.votes(plan, lattice)[COUNT] == 3 * 2**10
    assert MOST_PATIENTS * 2**10 < 2**31
    huge = replace(site, images=dict.fromkeys(map(str, range(most + 5)), crowd))
    assert huge.votes(plan, lattice)[COUNT] == most * 2**10


@given(plans())
def test_it_costs_what_was_asked_for_and_never_more(plan):
    try:
        made = plan.calibrate()
    except InvalidValueError:  # noise that is too wide or too narrow; others are below
        return
    for unit in plan.units:
        square = sum(
            (event.exposure(unit).sensitivity / made.sigma[event.name]) ** 2
            for event in made.guarantee.events
        )
        assert made.guarantee.mu(unit) == pytest.approx(math.sqrt(square), rel=1e-12)
    found = made.guarantee.epsilon(plan.delta, plan.unit, plan.conversion)
    assert 0.999 * plan.epsilon <= found <= plan.epsilon
    assert StatisticsPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    if plan.relation == "add-remove":
        rho = made.guarantee.rho("membership")
        shares = [event.rho("membership") / rho for event in made.guarantee.events]
        assert shares == pytest.approx(plan.split)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_another_accountant_finds_the_same(relation):
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    plan = replace(PLAN, relation=relation, split=(0.4, 0.3, 0.2, 0.1))
    sigma, accountant = plan.calibrate().sigma, PLDAccountant()
    for name, value in sigma.items():
        far = {"add-remove": 1.0, "replace": 0.0 if name == COUNT else math.sqrt(2)}[relation]
        if far:
            accountant.compose(dp_accounting.GaussianDpEvent(value / far))
    assert accountant.get_epsilon(plan.delta) == pytest.approx(plan.epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"relation": "swap"}, "relation = 'swap' is unknown; choose one of add-remove, replace"),
        ({"allocation": "uniform"}, "allocation = 'uniform'"),
        ({"split": (0.5, 0.5)}, "shares above 0 of count, area, intensity, size"),
        ({"split": (0.4, 0.4, 0.4, 0.4)}, "add up to 1"),
        ({"split": (1.0, 0.0, 0.0, 0.0)}, "above 0"),
        ({"area": ()}, "at least one"),
        ({"size": (64.0, 64.0)}, "rising"),
        ({"intensity": (0.0, math.inf)}, "finite"),
        ({"sites": 0}, "sites = 0"),
        ({"colluding": 1}, "where noise comes in shares"),
        ({"trust": "secure-sum"}, "needs two sites"),
        ({"trust": "secure-sum", "sites": 3, "colluding": 3}, "no share is left"),
        ({"trust": "secure-sum", "sites": 3, "allocation": "none"}, "hides nobody"),
    ],
)
def test_what_is_no_plan(choices, said):
    with pytest.raises(InvalidValueError, match=said):
        StatisticsPlan(**{"epsilon": 1.0} | choices)


def test_what_has_no_noise_that_fits():
    with pytest.raises(CanalError, match="leaves no room"):
        StatisticsPlan(1e-9, delta=1e-11).calibrate()
    with pytest.raises(CanalError, match="34 noise values"):
        StatisticsPlan(1e-12).calibrate()
    with pytest.raises(CanalError, match="too narrow"):
        StatisticsPlan(1e4, sites=9, trust="secure-sum").calibrate()


def test_a_bin_holds_its_lower_edge():
    area = PLAN.histograms["area"]
    assert [
        area.bins[area.bin(value)] for value in (NO_LABEL, NO_LESION, 5e-4, 0.001, 0.3, 1.0)
    ] == [
        *("no label", "no lesion", "below 0.001", "0.001 to 0.003", "0.3 or more", "0.3 or more"),
    ]
    size = PLAN.histograms["size"]
    found = [size.bins[size.bin(value)] for value in (63, 64, 4095, 4096)]
    assert found == ["below 64", "64 to 128", "2048 to 4096", "4096 or more"]
