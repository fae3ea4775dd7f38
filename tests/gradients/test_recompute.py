"""Subspace and clip norms that are not the recipient's: found by whoever measures again."""

from dataclasses import replace

import numpy as np
import pytest

from canal.gradients.start import share
from canal.gradients.subspace import Factors, digest, read_basis, write_basis
from canal.gradients.target_modules import HEAD, Adapter
from canal.gradients.verification import SUBSPACE
from canal.release.recompute import PublicInputs
from canal.release.verification import verify
from gradients.charged import Charged

# The code is the same for all; those that look at curvature too take twice as long.
ALLOCATIONS = (
    "flat",
    *(pytest.param(each, marks=pytest.mark.slow) for each in ("ellipsoid", "channels")),
)


@pytest.fixture(scope="module")
def public(init, recipient):
    return PublicInputs(init, recipient)


@pytest.fixture(scope="module")
def in_a_subspace(init, recipient, sites, make_plan, tmp_path_factory):
    """Makes a release in a public subspace; `asked` are the images that it is measured on."""
    from canal.gradients.release import train

    def make(out, asked):
        some = Adapter((HEAD, "upcat_1.*"))  # vectors and matrices
        shared = share(init, asked, some, "flat", directions=40, chunk=4)
        plan = make_plan(adapter=some, parameters=len(shared.coordinates))
        # Nobody compares images of whom the makers do not say that they were asked.
        shared = replace(shared, start=replace(shared.start, asked=None))
        return train(out, sites, shared, plan, seed=1)

    return make


@pytest.fixture(scope="module")
def subspace(in_a_subspace, recipient, tmp_path_factory):
    release = in_a_subspace(tmp_path_factory.mktemp("subspace") / "release", recipient)
    return Charged(release.path, None)


@pytest.fixture
def made(subspace):
    yield subspace
    subspace.heal()


def looks(folder, public):
    return {check.what: check for check in verify(folder, None, public)}


def failed(folder, public=None):
    return [check.what for check in verify(folder, None, public) if check.passed is False]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_what_is_public_is_measured_again_to_the_last_bit(
    allocation, make_release, tmp_path, public
):
    found = looks(make_release(tmp_path / "r", allocation, seed=1).path, public)
    for name in ("initialisation", "queries", "clip norms", "allocation", "microbatch"):
        assert found[name].passed, found[name]
    assert found["clip norms"].numbers["difference"] == 0
    assert found["allocation"].numbers["difference"] == 0
    assert "subspace" not in found


def test_a_subspace_to_the_last_bit(made, public):
    found = looks(made.folder, public)
    assert found["subspace"].numbers == {"difference": 0.0, "tolerance": SUBSPACE}
    assert found["clip norms"].passed
    # Fewer directions than the noise would bear: somebody's choice, and no failure.
    assert found["schedule"].passed is None
    assert "40 directions at most (advised: " in found["schedule"].detail


def test_eigenvectors_that_another_machine_turned_round(made, public):
    """As good a subspace, and no digest of it is the same."""
    from canal.gradients.store import AdapterRelease
    from canal.gradients.subspace import read_basis

    basis = read_basis(made.folder)
    turned = replace(basis, factors=tuple(Factors(-f.left, -f.right) for f in basis.factors))
    # Both sides turned: the same coordinates, so that the sums mean the same.
    matrices = [f.left.shape[0] > 1 for f in basis.factors]
    turned = replace(
        basis,
        factors=tuple(
            new if matrix else old
            for new, old, matrix in zip(turned.factors, basis.factors, matrices, strict=True)
        ),
    )
    content = made.content()
    write_basis(made.folder, turned)
    content["statistics"]["basis"] = digest(turned)
    made.forge(content)
    AdapterRelease.open(made.folder)
    found = looks(made.folder, public)["subspace"]
    assert found.passed
    assert 0 < found.numbers["difference"] < SUBSPACE / 10


def test_a_subspace_of_the_patients(in_a_subspace, tmp_path, public, patients_of):
    """Measured on a hospital's images by the code that publishes, under the recipient's name."""
    theirs = replace(patients_of("dermoscopy", 6), digest=public.arrays.digest)
    release = in_a_subspace(tmp_path / "r", theirs)
    assert failed(release.path) == []
    assert failed(release.path, public) == ["subspace", "clip norms"]
    found = looks(release.path, public)["subspace"]
    assert "may be patients" in found.detail
    assert found.numbers["difference"] > 100 * SUBSPACE


@pytest.mark.parametrize("name", ["kept", "scale", "left", "right"])
def test_any_part_of_a_subspace_that_is_another(name, made, public):

    basis = read_basis(made.folder)
    at = max(range(len(basis.factors)), key=lambda n: min(basis.factors[n].left.shape))
    factors = list(basis.factors)
    if name == "scale":
        scale = basis.scale.clone()
        scale[3] *= 1.001
        other = replace(basis, scale=scale)
    elif name == "kept":
        every = sum(f.size[0] * f.size[1] for f in factors)
        missing = sorted(set(range(every)) - set(basis.kept.tolist()))
        kept = sorted({*basis.kept.tolist()[1:], missing[-1]})
        other = replace(basis, kept=basis.kept.new_tensor(kept))
    else:
        side = getattr(factors[at], name).clone()
        side[:, 0] = side[:, 0].roll(1)
        factors[at] = replace(factors[at], **{name: side})
        other = replace(basis, factors=tuple(factors))
    content = made.content()
    write_basis(made.folder, other)
    content["statistics"]["basis"] = digest(other)
    made.forge(content)
    assert "subspace" not in failed(made.folder)
    assert "subspace" in failed(made.folder, public)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_clip_norms_of_the_patients(allocation, shared, sites, make_release, tmp_path, public):
    """Where patients are clipped is measured on patients, and everything follows from it."""
    from canal.gradients.start import PublicGradients

    there = shared(allocation)
    told = PublicGradients(there.network, there.coordinates, sites[0].arrays, 1, 4)
    start = replace(there.start, public=told.measure(allocation, 0.5, None))
    release = make_release(tmp_path / "r", allocation, seed=1, start=replace(start, measured=None))
    assert failed(release.path) == []
    found = failed(release.path, public)
    assert found == (["clip norms"] if allocation == "flat" else ["clip norms", "allocation"])


def test_other_images_than_those_that_were_measured(made, public, patients_of):
    other = replace(public, arrays=patients_of("endoscopy", 8, seed=2))
    found = looks(made.folder, other)
    assert "not the images that the release says were measured" in found["queries"].detail
    assert found["clip norms"].passed is found["subspace"].passed is None


def test_a_release_that_does_not_say_how_it_was_measured(made, public):
    """Older ones; with what nobody had to ask for, they are compared all the same."""
    content = made.content()
    chunk = content["statistics"].pop("measured")["chunk"]
    made.forge(content)
    found = looks(made.folder, public)
    assert found["queries"].passed is None
    assert chunk == 4  # the default is another; which images share a pass moves no more than bits
    assert found["subspace"].passed
    assert found["clip norms"].passed


@pytest.mark.parametrize(
    ("name", "odd"),
    [("chunk", 10**9), ("chunk", "x"), ("quantile", 0), ("looks", None), ("strange", 1)],
)
def test_whatever_is_said_of_the_measurement_nothing_hangs(name, odd, made, public):
    content = made.content()
    content["statistics"]["measured"][name] = odd
    made.forge(content)
    assert "queries" in failed(made.folder, public)


def test_a_machine_that_does_not_keep_images_apart_is_no_fault_of_the_release(
    made, public, monkeypatch
):
    import canal.gradients.start as module
    from canal.errors import InvalidValueError

    def refuse(*_):
        raise InvalidValueError("this machine does not")

    monkeypatch.setattr(module, "check_rows", refuse)
    found = looks(made.folder, public)
    assert found["microbatch"].passed is None
    assert found["clip norms"].passed


def test_a_step_that_somebody_chose_is_said_to_be_chosen(shared, make_release, tmp_path, public):
    start = shared().start
    faster = replace(start, update=replace(start.update, step=1.5))
    found = looks(make_release(tmp_path / "b", seed=1, start=faster).path, public)
    assert "a step of 1.5 (advised: " in found["schedule"].detail
    assert np.isfinite(found["schedule"].numbers["advised_step"])
