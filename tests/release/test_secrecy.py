"""What is private stays out of the folder: the secret of the noise, digests of networks."""

import hashlib

import pytest

from canal.errors import FederationError
from canal.release.aggregator import create
from canal.release.options import Options
from canal.release.sites import LocalSites
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


def test_the_secret_does_not_wait_for_a_site_that_is_away(
    ensemble, queries, make_plan, ledger, tmp_path, monkeypatch
):
    """Once the release is out, it could take the noise off what everybody has."""

    def away(sites, manifest):
        raise FederationError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(LocalSites, "finish", away)
        with pytest.raises(FederationError):
            create(tmp_path / "release", ensemble, queries, make_plan(), ledger=ledger)
    assert (tmp_path / "release" / "manifest.json").is_file()
    assert not (tmp_path / "release.private" / "secret").exists()
    made = create(tmp_path / "release", ensemble, queries, make_plan(), ledger=ledger)
    assert all(check.passed for check in verify(made.path, ledger))


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
