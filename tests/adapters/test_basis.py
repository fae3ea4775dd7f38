"""A public basis: orthonormal, of what public gradients hold most, and nobody's company shows."""

import numpy as np
import pytest
import torch

from canal.adapters.adapter import Adapter
from canal.adapters.basis import digest, leading, project
from canal.adapters.clip import Clip
from canal.adapters.cohorts import LocalCohorts
from canal.adapters.shared import share
from canal.adapters.store import BASIS, AdapterRelease, read_basis, write_basis
from canal.adapters.verification import verify
from canal.errors import InvalidValueError, ReleaseError
from canal.privacy.lattice import Lattice


def gradients(count, size, rank, seed=0):
    """Rows in few dimensions, of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, rank, generator=generator) @ torch.randn(
        rank, size, generator=generator
    )
    return rows * torch.logspace(-3, 3, count)[:, None]


def test_it_is_orthonormal_and_holds_what_there_is():
    rows = gradients(20, 300, rank=6)
    basis = leading(rows, 6)
    assert basis.shape == (6, 300)
    torch.testing.assert_close(basis @ basis.T, torch.eye(6), rtol=0, atol=1e-6)
    torch.testing.assert_close(project(rows, basis) @ basis, rows, rtol=1e-4, atol=1e-4)


def test_it_is_the_eigenvectors_of_rows_of_length_one():
    """Against an independent singular value decomposition, up to signs."""
    rows = gradients(12, 40, rank=12)
    unit = rows.double() / rows.double().norm(dim=1, keepdim=True)
    want = torch.linalg.svd(unit, full_matrices=False).Vh[:4]
    overlap = (leading(rows, 4).double() @ want.T).abs()
    torch.testing.assert_close(overlap, torch.eye(4).double(), rtol=0, atol=1e-5)


def test_an_image_that_says_nothing_is_left_out():
    rows = gradients(8, 30, rank=8)
    torch.testing.assert_close(leading(torch.cat([rows, torch.zeros(3, 30)]), 3), leading(rows, 3))


@pytest.mark.parametrize(("count", "word"), [(0, "at least 1"), (21, "at most 20"), (7, "fewer")])
def test_directions_that_nobody_knows_are_refused(count, word):
    with pytest.raises(InvalidValueError, match=word):
        leading(gradients(20, 300, rank=6), count)


def test_a_row_is_projected_to_the_same_bits_in_any_company():
    rows, basis = gradients(9, 5000, rank=9), leading(gradients(9, 5000, rank=9, seed=1), 5)
    together = project(rows, basis)
    for at in range(9):
        assert torch.equal(project(rows[at : at + 1], basis)[0], together[at])
    assert torch.equal(project(rows.flip(0), basis).flip(0), together)


def test_clipped_behind_a_basis_a_patient_is_no_longer_than_one():
    basis, lattice = leading(gradients(9, 200, rank=9), 4), Lattice(2.0**-12)
    clip = Clip(np.ones(4), np.zeros(4, dtype=np.int64), np.array([0.5]), 0.5, basis)
    huge = 1e6 * basis.sum(dim=0, keepdim=True)
    small = 0.1 * basis[1:2]
    found = clip.apply(torch.cat([huge, small]), lattice)
    assert found.shape == (2, 4)
    assert (found.square().sum(dim=1) <= 4**12).all()
    assert found[0].double().norm() > 0.999 * 2**12
    assert found[1].tolist() == pytest.approx([0, 0.2 * 2**12, 0, 0], abs=2)


@pytest.fixture(scope="module")
def there(init, recipient):
    """The shared network, with five directions."""
    return share(init, recipient, Adapter(), "flat", directions=5, chunk=4)


@pytest.fixture
def taught(places, make_release, sites, there):
    """A research run on them."""
    there.coordinates.write(there.start.values)
    return make_release(
        places().out,
        plan={"directions": 5},
        cohorts=LocalCohorts(sites, there.network, there.coordinates),
        start=there.start,
        seed=2,
    )


def test_a_release_carries_its_basis(taught, there):
    assert [check.what for check in verify(taught.path) if check.passed is False] == []
    basis = read_basis(taught.path)
    assert digest(basis) == taught.manifest.statistics["basis"]
    assert taught.sums(0).shape == (5,)
    there.coordinates.write(there.start.values)
    moved = taught.trajectory(there.coordinates).adapter - there.start.values.double()
    assert float(moved.norm()) > 0
    inside = project(moved[None].float(), basis) @ basis
    torch.testing.assert_close(inside[0], moved.float(), rtol=1e-3, atol=1e-4)


def test_another_basis_is_found(taught, there):
    other = read_basis(taught.path).flip(0)
    write_basis(taught.path, other)
    failed = {check.what: check.detail for check in verify(taught.path) if check.passed is False}
    assert list(failed) == ["basis"]
    with pytest.raises(InvalidValueError, match="another basis"):
        AdapterRelease.open(taught.path).trajectory(there.coordinates)
    (taught.path / BASIS).write_bytes(b"no tensors")
    with pytest.raises(ReleaseError, match="cannot be read"):
        read_basis(taught.path)
