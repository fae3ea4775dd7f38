"""All sites in one process: their sums are the sum, and none of them does what is not stated."""

import numpy as np
import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError, ReleaseError
from canal.gradients.adapter import Adapter
from canal.gradients.cohorts import LocalCohorts, contribute
from canal.gradients.mechanism import COUNT_STEP, Mechanism
from canal.gradients.patients import Patients
from canal.privacy import Secret
from canal.release.noise import Noise


@pytest.fixture(scope="module")
def mechanism(shared, make_plan):
    public = shared().start.public
    return Mechanism.of(make_plan(count=0.1).calibrate(public.weights), public)


def test_the_sum_of_all_sites_is_the_sum_over_all_patients(
    shared, sites, make_cohorts, mechanism, gradients
):
    cohorts, start = make_cohorts(), shared().start
    found = cohorts.total(mechanism, 2, start.values, None, b"")
    lattice = mechanism.calibrated.lattice
    parts = [site.total(gradients, mechanism.clip, lattice, 2).numpy() for site in sites]
    np.testing.assert_array_equal(found, sum(parts))
    assert found.dtype == np.int64


def test_every_round_is_asked_of_the_network_as_it_is_then(shared, make_cohorts, mechanism):
    """Whatever was written before: the values decide, and the same values give the same sum."""
    cohorts, values = make_cohorts(), shared().start.values
    first = cohorts.total(mechanism, 0, values, None, b"")
    moved = cohorts.total(mechanism, 0, values + 0.1, None, b"")
    assert not np.array_equal(first, moved)
    np.testing.assert_array_equal(cohorts.total(mechanism, 0, values, None, b""), first)
    cohorts.total(mechanism, 0, values, None, b"")  # leave it as others expect it


def test_patients_are_counted_not_images(sites, make_cohorts, mechanism):
    count = make_cohorts().count(mechanism) * COUNT_STEP
    assert count == sum(len(site) for site in sites)
    assert count < sum(len(site.arrays.ids) for site in sites)


def test_a_site_adds_its_share_of_the_noise_once(shared, sites, make_plan, gradients):
    plan = make_plan(trust="secure-sum", colluding=1)
    public = shared().start.public
    mechanism = Mechanism.of(plan.calibrate(public.weights), public)
    own = Noise(Secret.seeded(4), (b"site",))
    plain = contribute(mechanism, sites[0], gradients, 1, None, b"before")
    noisy = contribute(mechanism, sites[0], gradients, 1, own, b"before")
    np.testing.assert_array_equal(
        noisy, mechanism.noisy_sum.share(plain, own.of_round(1, b"before"))
    )
    assert not np.array_equal(noisy, plain)


def test_shares_of_one_release_are_not_added_to_the_next(make_cohorts, make_release, tmp_path):
    """The same sites rehearse a secure sum, and then trust an aggregator: one noise, no shares."""
    cohorts = make_cohorts()
    choices = {"trust": "secure-sum", "count": 0.05}
    make_release(tmp_path / "shares", cohorts=cohorts, plan=choices, seed=3)
    again = make_release(tmp_path / "again", cohorts=cohorts, plan={"count": 0.05}, seed=3)
    fresh = make_release(tmp_path / "fresh", cohorts=make_cohorts(), plan={"count": 0.05}, seed=3)
    assert again.patients == fresh.patients
    np.testing.assert_array_equal(again.sums(0), fresh.sums(0))


def test_sites_have_names_of_their_own(sites, shared):
    network, coordinates = shared().network, shared().coordinates
    for some in ((), (sites[0], sites[0])):
        with pytest.raises(ReleaseError, match="a name of its own"):
            LocalCohorts(some, network, coordinates)


def test_a_claim_says_what_determines_a_sites_part(sites, make_cohorts):
    assert make_cohorts().claims == [[site.cohort, site.digest] for site in sites]


def test_progress_counts_images(sites, shared, make_cohorts, mechanism):
    told = []
    make_cohorts(progress=told.append).total(mechanism, 0, shared().start.values, None, b"")
    assert sum(told) == 12


def test_sites_that_vary_images_otherwise_than_agreed_are_refused(sites, shared, patients_of):
    odd = Patients("odd", patients_of("endoscopy", 2), views=0, chunk=4)
    cohorts = LocalCohorts([*sites, odd], shared().network, shared().coordinates)
    with pytest.raises(ReleaseError, match="site 'odd' has views = 0, the release 1"):
        cohorts.check(views=1)
    with pytest.raises(ReleaseError, match="'dermoscopy' has views = 1"):
        cohorts.check(views=0)


class Uneven(nn.Module):
    """Even in batches of four; in others, the second image comes out a little otherwise."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, images):
        scale = torch.ones(len(images), 1, 1, 1)
        if len(images) != 4:
            scale[1] += 1e-6
        return self.layer(images) * scale


def test_batches_of_every_site_are_looked_at(patients_of):
    """Not only those that public images were measured in: kernels differ from shape to shape."""
    network = Uneven()
    coordinates = Adapter(parts=("*",)).install(network)
    arrays = patients_of("endoscopy", 4)
    even, odd = (Patients(f"in {chunk}", arrays, chunk=chunk) for chunk in (4, 3))
    LocalCohorts([even], network, coordinates).check(views=1)
    with pytest.raises(InvalidValueError, match="last bits"):
        LocalCohorts([even, odd], network, coordinates).check(views=1)
