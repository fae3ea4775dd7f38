"""A public basis: what public gradients hold most, layer by layer, and nobody's company shows."""

import numpy as np
import pytest
import torch

from canal.errors import InvalidValueError, ReleaseError
from canal.gradients import gradients
from canal.gradients.gradients import Gradients
from canal.gradients.start import share
from canal.gradients.store import AdapterRelease
from canal.gradients.subspace import BASIS, Basis, Factors, Moments, digest, read_basis, write_basis
from canal.gradients.target_modules import Adapter
from canal.learning.networks import UNetArchitecture
from canal.release.verification import verify
from gradients.pictures import pictures
from gradients.place import FEW

SHAPES = ((6, 5, 2), (4,), (3, 7))
SIZE = 60 + 4 + 21


def rows_of(count, seed=0):
    """Gradients of three parameters, matrices of low rank, of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    parts = []
    for m, n in ((6, 10), (3, 7)):
        sides = torch.randn(m, 2, generator=fixed), torch.randn(2, n, generator=fixed)
        inside = torch.randn(count, 2, 2, generator=generator)
        parts.append((sides[0] @ inside @ sides[1]).flatten(1))
    vector = torch.randn(count, 4, generator=generator)
    rows = torch.cat([parts[0], vector, parts[1]], dim=1)
    return rows * torch.logspace(-3, 3, count)[:, None]


def made(count=10, power=0.5, rows=None):
    moments = Moments(SHAPES)
    moments.add(rows_of(20) if rows is None else rows)
    return moments.basis(count, power=power)


def matrix(basis):
    """Every direction written out, `[k, d]`."""
    return torch.stack([basis.expand(each) for each in torch.eye(len(basis)).double()])


def test_what_lies_in_the_basis_is_kept():
    """Two by two directions of each matrix and all of the vector hold everything there is."""
    basis = made(12, power=0.0)
    assert len(basis) == 12
    assert basis.parameters == SIZE
    rows = rows_of(5, seed=3).double()
    back = basis.project(rows.float()).double() @ matrix(basis)
    torch.testing.assert_close(back, rows, rtol=1e-4, atol=1e-5 * float(rows.abs().max()))
    gram = matrix(basis) @ matrix(basis).T
    torch.testing.assert_close(gram, torch.eye(12).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_expand_is_the_transpose_of_project(power):
    basis, rows = made(9, power=power), rows_of(4, seed=5)
    found = basis.project(rows).double()
    torch.testing.assert_close(rows.double() @ matrix(basis).T, found, rtol=1e-4, atol=1e-6)


def test_directions_are_the_eigenvectors_of_both_sides():
    """Against moments written out with rows of length one, up to signs."""
    rows = rows_of(20).double()
    unit = rows / rows.norm(dim=1, keepdim=True)
    first = unit[:, :60].reshape(20, 6, 10)
    left = sum(each @ each.T for each in first)
    want = torch.linalg.eigh(left).eigenvectors.flip(1)[:, :2]
    got = made(12).factors[0].left.double()
    assert got.shape == (6, 2)
    torch.testing.assert_close((got.T @ want).abs(), torch.eye(2).double(), rtol=0, atol=1e-5)


def test_the_largest_shares_of_every_parameter_come_first():
    """More directions are those of before and others, and each parameter has some of them."""
    few, many = (
        {tuple(each) for each in matrix(made(count, power=0.0)).round(decimals=4).tolist()}
        for count in (4, 7)
    )
    assert few < many
    assert all(r * s > 0 for r, s in (each.size for each in made(4).factors))


def test_power_makes_large_directions_smaller():
    """At p = 1 every direction has the same energy on average, but for the damping."""
    rows = rows_of(200, seed=1)
    rows = rows / rows.norm(dim=1, keepdim=True)
    spreads = []
    for power in (0.0, 0.5, 1.0):
        energy = made(12, power, rows).project(rows).square().mean(dim=0)
        spreads.append(float(energy.max() / energy.min()))
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[2] < 4


def test_an_image_that_says_nothing_is_left_out():
    rows = rows_of(8)
    with_silence = torch.cat([rows, torch.zeros(3, SIZE)])
    assert digest(made(5, rows=with_silence)) == digest(made(5, rows=rows))


def test_there_are_no_more_directions_than_public_images_know():
    rows = rows_of(3)
    assert len(made(500, rows=rows)) < SIZE
    assert digest(made(500, rows=rows)) == digest(made(len(made(500, rows=rows)), rows=rows))
    with pytest.raises(InvalidValueError, match="must be at least 1, of the"):
        made(0)


def test_images_without_any_gradient_know_no_direction():
    with pytest.raises(InvalidValueError, match="of the 0 that are known"):
        made(5, rows=torch.zeros(3, SIZE))


def test_a_row_is_projected_to_the_same_bits_in_any_company():
    rows, basis = rows_of(9, seed=4), made()
    together = basis.project(rows)
    for at in range(9):
        assert torch.equal(basis.project(rows[at : at + 1])[0], together[at])
    assert torch.equal(basis.project(rows.flip(0)).flip(0), together)


def test_arrays_there_and_back():
    basis = made()
    again = Basis.from_arrays(basis.to_arrays())
    assert digest(again) == digest(basis)
    assert torch.equal(again.project(rows_of(3)), basis.project(rows_of(3)))


def changed(name, change):
    arrays = {key: value.copy() for key, value in made().to_arrays().items()}
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    return arrays


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("kept", None),
        ("left 1", None),
        ("kept", lambda kept: kept[::-1].copy()),
        ("kept", lambda kept: kept + 10_000),
        ("kept", lambda kept: np.zeros_like(kept)),
        ("kept", lambda kept: kept.astype(np.float32)),
        ("scale", lambda scale: -scale),
        ("scale", lambda scale: scale * np.float32(np.inf)),
        ("scale", lambda scale: scale[1:].copy()),
        ("left 0", lambda left: left.astype(np.float64)),
        ("left 0", lambda left: left[0].copy()),
    ],
)
def test_what_is_no_basis_is_refused(name, change):
    with pytest.raises(InvalidValueError, match="basis"):
        Basis.from_arrays(changed(name, change))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("parts", [("*",), ("norms", "upcat_1.*")])
def test_rows_that_are_turned_before_or_after_the_sum_are_the_same(parts, first, monkeypatch):
    """Of the network that we release, with transposed convolutions and norms, in doubles."""
    monkeypatch.setattr(gradients, "_first", lambda *shapes: first)
    network = UNetArchitecture(base_channels=8).build(seed=0).double()
    coordinates = Adapter(parts).install(network)
    images, masks = (each.double() for each in pictures(3))
    full = Gradients(network, coordinates.names)(images, masks)
    moments = Moments(coordinates.shapes)
    moments.add(full)
    single = moments.basis(200)
    factors = tuple(Factors(each.left.double(), each.right.double()) for each in single.factors)
    basis = Basis(factors, single.kept, single.scale.double())
    fast = Gradients(network, coordinates.names, basis=basis)(images, masks)
    assert fast.shape == (3, 200)
    want = basis.project(full)
    torch.testing.assert_close(fast, want, rtol=1e-9, atol=1e-12 * float(want.abs().max()))


@pytest.fixture(scope="module")
def there(init, recipient):
    """The shared network, with five directions."""
    return share(init, recipient, FEW, "flat", directions=5, chunk=4)


@pytest.fixture
def taught(places, make_release, sites, there):
    """A research run on them."""
    there.coordinates.write(there.start.values)
    return make_release(
        places().out,
        plan={"directions": 5},
        sites=sites,
        there=there,
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
    directions = matrix(basis)
    inside = torch.linalg.lstsq(directions.T, moved).solution @ directions
    torch.testing.assert_close(inside, moved, rtol=1e-6, atol=1e-9)


def test_another_basis_is_found(taught, there):
    basis = read_basis(taught.path)
    write_basis(taught.path, Basis(basis.factors, basis.kept, basis.scale.flip(0)))
    failed = {check.what: check.detail for check in verify(taught.path) if check.passed is False}
    assert list(failed) == ["basis"]
    with pytest.raises(InvalidValueError, match="another basis"):
        AdapterRelease.open(taught.path).trajectory(there.coordinates)
    (taught.path / BASIS).write_bytes(b"no tensors")
    with pytest.raises(ReleaseError, match="cannot be read"):
        read_basis(taught.path)
