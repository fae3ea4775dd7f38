"""What is private stays out of the folder: the secret of the noise, digests of networks."""

import hashlib
import os
from contextlib import nullcontext

import pytest

from canal.errors import FederationError, ReleaseError
from canal.features.release import Options, create
from canal.features.store import Release
from canal.privacy import Secret
from canal.release.mechanism import LocalFederation
from canal.release.store import open_release
from canal.release.verification import verify
from release.place import UNITS, holds


def test_the_secret_is_kept_for_its_owner_and_then_destroyed(
    ensemble, queries, make_plan, ledger, tmp_path
):
    """Mode 0600 while images pass through the networks; afterwards gone, and nowhere written."""
    kept = tmp_path / "release.private" / "secret"
    seen = []

    def look(count):
        seen.append((kept.read_bytes(), kept.stat().st_mode & 0o777))

    options = Options(progress=look)
    create(tmp_path / "release", ensemble, queries, make_plan(), ledger=ledger, options=options)
    ((secret, mode),) = set(seen)
    assert (len(secret), any(secret), mode) == (32, True, 0o600)
    assert not kept.exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and holds(path, secret)]


def test_nothing_is_published_beside_a_key_of_its_noise(
    ensemble, queries, make_plan, ledger, tmp_path, monkeypatch
):
    """Sites have keys of their own: while one is away, nothing is out; nor does our key wait."""

    def away(sites, manifest):
        raise FederationError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFederation, "finish", away)
        with pytest.raises(FederationError):
            create(tmp_path / "release", ensemble, queries, make_plan(), ledger=ledger)
    assert not (tmp_path / "release").exists()
    assert not os.path.lexists(tmp_path / "release.private" / "secret")
    made = create(tmp_path / "release", ensemble, queries, make_plan(), ledger=ledger)
    assert all(check.passed for check in verify(made.path, ledger))


@pytest.fixture
def kept(ensemble, queries, make_plan, ledger, tmp_path):
    """A release, and its key put back beside it, as from a copy of the private folder."""
    out, path = tmp_path / "release", tmp_path / "release.private" / "secret"
    values = set()
    options = Options(progress=lambda count: values.add(path.read_bytes()))
    create(out, ensemble, queries, make_plan(), ledger=ledger, options=options)
    (value,) = values
    return out, Secret.keep(value, path)


def test_a_key_that_is_left_is_seen_by_whoever_reads(kept, ledger):
    out, _ = kept
    failed = {check.what: check.detail for check in verify(out, ledger) if check.passed is False}
    assert failed.keys() == {"key"}
    assert "anyone can take the noise off" in failed["key"]
    for read in (Release.open, open_release):
        with pytest.raises(ReleaseError, match="once more, which destroys it"):
            read(out)
    Secret.destroy(out.with_name("release.private") / "secret")
    assert all(check.passed for check in verify(out, ledger))


@pytest.mark.parametrize("epsilon", [8.0, 4.0])
def test_a_key_that_is_left_is_destroyed_by_the_next_run(
    kept, epsilon, ensemble, queries, make_plan, ledger, tmp_path
):
    """Whatever it is asked for: the key is that of what is published."""
    out, secret = kept
    rows = ledger.rows()
    with nullcontext() if epsilon == 8.0 else pytest.raises(ReleaseError, match="another plan"):
        create(out, ensemble, queries, make_plan(epsilon=epsilon), ledger=ledger)
    assert ledger.rows() == rows
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and holds(path, secret.value)
    ]
    assert all(check.passed for check in verify(out, ledger))


@pytest.mark.parametrize("preset", UNITS)
def test_the_folder_holds_no_digest_of_what_is_private(
    preset, ensemble, queries, make_plan, make_ledger, checkpoints, tmp_path
):
    """Training can be repeated to the bit, so a digest would tell who was in a cohort."""
    ledger, out = make_ledger(UNITS[preset]), tmp_path / "release"
    create(out, ensemble, queries, make_plan(preset), ledger=ledger)
    files = [folder / "weights.safetensors" for folder in checkpoints.teachers]
    private = {
        *(bytes.fromhex(teacher.digest) for teacher in ensemble.teachers),
        *(bytes.fromhex(content) for content in queries.contents),
        *(hashlib.sha256(file.read_bytes()).digest() for file in files),
    }
    claim = tmp_path / "release.private" / "claim.json"
    assert sum(holds(claim, digest) for digest in private) == 3 + 40  # so this search finds them
    published = list(out.iterdir())
    assert len(published) == 3
    assert not [digest.hex() for digest in private for path in published if holds(path, digest)]
