"""The agreement: whatever changes in it changes the noise of every site."""

from dataclasses import replace

import numpy as np
import pytest

from canal.gradients.mechanism import GradientSpec, stream_of_round
from canal.gradients.plan import AdapterPlan
from canal.gradients.update import UpdateSettings
from canal.privacy import Secret, rounded_gaussian

AGREED = GradientSpec(
    plan=AdapterPlan(epsilon=8.0, patients=100, parameters=50, sites=2),
    cohorts=("north", "south"),
    initialisation="0" * 64,
    public={"scales": [1.0], "bounds": [1.0], "weights": [1.0], "length": 1.0},
    update=UpdateSettings(),
    views=1,
    noise="secret",
)
CHANGES = {
    "plan": replace(AGREED.plan, rounds=41),
    "cohorts": ("south", "north"),
    "initialisation": "1" * 64,
    "public": AGREED.public | {"bounds": [1.0000001]},
    "update": UpdateSettings(step=0.3),
    "views": 3,
    "noise": "seed 3",
}


def drawn(spec, claim=("north", "patients"), number=0, published=b""):
    noise = spec.noise_of_site(Secret.seeded(1), list(claim))
    return rounded_gaussian(1000.0, (50,), stream_of_round(noise, number, published))


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_agreed_on_otherwise_is_other_noise(name):
    other = replace(AGREED, **{name: CHANGES[name]})
    assert other.digest != AGREED.digest
    assert not np.array_equal(drawn(other), drawn(AGREED))
    assert set(CHANGES) == set(AGREED.to_json())


def test_noise_belongs_to_a_site_a_round_and_what_came_before():
    """The same again is the same; anything else is fresh."""
    kinds = [
        drawn(AGREED),
        drawn(AGREED, claim=("north", "one patient less")),
        drawn(AGREED, claim=("south", "patients")),
        drawn(AGREED, number=1),
        drawn(AGREED, published=b"another sum"),
    ]
    assert len({each.tobytes() for each in kinds}) == len(kinds)
    np.testing.assert_array_equal(drawn(AGREED), kinds[0])


def test_arms_of_an_experiment_share_their_draws():
    arm = replace(AGREED, noise="seed 3, paired")
    other = replace(arm, plan=replace(AGREED.plan, epsilon=1.0))
    pairs = [drawn(each, published=each.digest) for each in (arm, other)]
    np.testing.assert_array_equal(*pairs)


def test_only_a_secret_makes_it_private():
    assert AGREED.private
    assert not replace(AGREED, noise="seed 3").private
    assert not replace(AGREED, plan=replace(AGREED.plan, allocation="none")).private
