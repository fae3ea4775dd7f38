"""Sites in one process: their sums are the sum, and none of them does what is not stated."""

import numpy as np
import pytest
import torch
from torch import nn

from canal.errors import InvalidValueError, ReleaseError
from canal.gradients.gradients import check_rows, made_up
from canal.gradients.mechanism import COUNT, COUNT_STEP, stream_of_round
from canal.gradients.patients import Patients
from canal.gradients.plan import TENSOR
from canal.gradients.release import check_sites
from canal.gradients.target_modules import Adapter
from canal.privacy import Secret
from canal.release.mechanism import LocalFederation, Noise, Published, Step, contribution

ROUND = Step(TENSOR, 2, 2, 3)


def total(asked, step=ROUND, published=None):
    """The one sum of a step over all sites."""
    _, federation = asked
    (sums,) = federation.sums([step], published or Published())
    (rows,) = sums.values()
    return rows[0]


def test_the_sum_of_all_sites_is_the_sum_over_all_patients(sites, make_asked, gradients):
    asked = make_asked()
    found, summed = total(asked), asked[0].patient_sum
    lattice = summed.calibrated.lattice
    parts = [site.total(gradients, summed.clip, lattice, 2).numpy() for site in sites]
    np.testing.assert_array_equal(found, sum(parts))
    assert found.dtype == np.int64


def test_every_round_is_asked_of_the_network_as_it_is_then(make_asked):
    """Whatever was computed before: what was published decides, and the same gives the same sum."""
    asked = make_asked()
    first = total(asked)
    width = asked[0].plan.coordinates
    moved = total(asked, published=Published({}, [np.full(width, 10**6, np.int32)]))
    assert not np.array_equal(first, moved)
    np.testing.assert_array_equal(total(asked), first)


def test_patients_are_counted_not_images(sites, make_asked):
    count = total(make_asked(plan={"count": 0.1}), Step(COUNT)) * COUNT_STEP
    assert count == sum(len(site) for site in sites)
    assert count < sum(len(site.arrays.ids) for site in sites)


def test_a_site_adds_its_share_of_the_noise_once(sites, make_asked):
    mechanism, _ = make_asked(plan={"trust": "secure-sum", "colluding": 1})
    own, published = Noise(Secret.seeded(4), (b"site",)), Published()
    plain = contribution(mechanism, ROUND, sites[0], published, None)[TENSOR][0]
    noisy = contribution(mechanism, ROUND, sites[0], published, own)[TENSOR][0]
    stream = stream_of_round(own, 2, mechanism.walk(published).published)
    np.testing.assert_array_equal(noisy, mechanism.patient_sum.noisy_sum.share(plain, stream))
    assert not np.array_equal(noisy, plain)


def test_shares_of_one_release_are_not_added_to_the_next(sites, make_asked):
    """The same sites simulate a secure sum, and then trust an aggregator: one noise, no shares."""
    federation, found = LocalFederation(sites), []
    for trust in ("trusted", "secure-sum", "trusted"):
        mechanism, _ = make_asked(plan={"trust": trust})
        federation.prepare(mechanism, Secret.seeded(3))
        found.append(total((mechanism, federation)))
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])


def test_sites_have_names_of_their_own(sites):
    for some in ((), (sites[0], sites[0])):
        with pytest.raises(ReleaseError, match="a name of its own"):
            LocalFederation(some)


def test_a_claim_says_what_determines_a_sites_part(sites):
    assert LocalFederation(sites).claims == [[site.cohort, site.digest] for site in sites]


def test_progress_counts_images(make_asked):
    told = []
    total(make_asked(progress=told.append))
    assert sum(told) == 12


def test_sites_that_vary_images_otherwise_than_agreed_are_refused(sites, make_asked, patients_of):
    odd = Patients("odd", patients_of("endoscopy", 2), views=0, chunk=4)
    mechanism, _ = make_asked()
    with pytest.raises(ReleaseError, match="site 'odd' has views = 0, the release 1"):
        check_sites(mechanism, [*sites, odd])


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


def test_batches_of_every_site_are_looked_at(patients_of, make_asked, monkeypatch):
    """Not only those that public images were measured in: kernels differ from shape to shape."""
    from canal.gradients.gradients import Gradients

    network = Uneven()
    coordinates = Adapter(parts=("*",)).install(network)
    mechanism, _ = make_asked()
    object.__setattr__(mechanism, "gradients", Gradients(network, coordinates.names))
    arrays = patients_of("endoscopy", 4)
    even, odd = (Patients(f"in {chunk}", arrays, chunk=chunk) for chunk in (4, 3))
    check_sites(mechanism, [even])
    check_rows(mechanism.gradients, *made_up((4, *arrays.images.shape[1:])))
    with pytest.raises(InvalidValueError, match="last bits"):
        check_sites(mechanism, [even, odd])
