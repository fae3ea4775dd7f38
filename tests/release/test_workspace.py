"""The private folder: what was drawn with one secret is never published with another."""

import json
import shutil
from dataclasses import replace

import pytest

from canal.errors import LedgerError, ReleaseError, SecretLostError
from canal.features import mechanism as mechanism_module
from canal.features.ensemble import Ensemble
from canal.features.release import Options, create
from canal.learning.networks import Tap
from canal.privacy import Ledger
from canal.release import publish as publish_module
from canal.release.verification import verify
from canal.release.workspace import Workspace


class Stop(Exception):  # noqa: N818
    """A run that ends here, as if it had been killed."""


@pytest.fixture
def stopped(tmp_path, ensemble, queries, make_plan, ledger, monkeypatch):
    """A release that was stopped behind its first shard of three."""
    monkeypatch.setattr(mechanism_module, "ROWS", 16)
    out, done = tmp_path / "release", []

    def stop(count):
        done.append(count)
        if (tmp_path / "release.private" / "release" / "features-00000.safetensors").exists():
            raise Stop

    options = Options(progress=stop)
    with pytest.raises(Stop):
        create(out, ensemble, queries, make_plan(), ledger=ledger, options=options)
    return out


def test_shards_of_an_exposed_secret_are_not_published(
    stopped, tmp_path, ensemble, queries, make_plan, ledger
):
    """Whoever read the secret could take the noise off; with a new one, all of it is drawn anew."""
    private = tmp_path / "release.private"
    shard = private / "release" / "features-00000.safetensors"
    known = shard.read_bytes()
    (private / "secret").chmod(0o644)
    with pytest.raises(SecretLostError, match="others may have read"):
        create(stopped, ensemble, queries, make_plan(), ledger=ledger)
    assert not shard.exists()
    (private / "secret").unlink()
    with pytest.raises(SecretLostError, match="charged anew"):
        create(stopped, ensemble, queries, make_plan(), ledger=ledger)
    shutil.rmtree(private)
    create(stopped, ensemble, queries, make_plan(), ledger=ledger)
    assert (stopped / "features-00000.safetensors").read_bytes() != known
    assert all(check.passed for check in verify(stopped, ledger))
    reserved = {row.key for row in ledger.rows() if row.action == "reserve"}
    assert len(reserved) == 2  # the second secret is a second release, and paid for


def test_a_sealed_release_of_an_exposed_secret_is_not_published(
    tmp_path, ensemble, queries, make_plan, ledger, monkeypatch
):
    """Nor later, when the secret is gone."""
    out, private = tmp_path / "release", tmp_path / "release.private"
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", stop)
        with pytest.raises(Stop):
            create(out, ensemble, queries, make_plan(), ledger=ledger)
    (private / "secret").chmod(0o604)
    for _ in range(2):
        with pytest.raises(SecretLostError, match="charged anew"):
            create(out, ensemble, queries, make_plan(), ledger=ledger)
        (private / "secret").unlink(missing_ok=True)
    assert not out.exists()


def stop(*_, **__):
    raise Stop


def test_another_layer_or_network_is_another_release(stopped, ensemble, queries, make_plan, ledger):
    """Of the same weights: a digest of those alone does not tell."""
    other = ensemble.teachers[0].tap.network
    layer = Tap(other, "down_4.convs")  # the same shape, and here even the same values
    teachers = tuple(replace(t, tap=Tap(t.tap.network, layer.layer)) for t in ensemble.teachers)
    moved = replace(ensemble, teachers=teachers)
    with pytest.raises(ReleaseError, match=r"another (layer, )?teachers"):
        create(stopped, moved, queries, make_plan(), ledger=ledger)


@pytest.fixture
def copied(stopped, tmp_path, monkeypatch):
    """A second copy of the private folder, link or file; where it would publish."""

    def copy(links):
        (tmp_path / "copy").mkdir()
        private = tmp_path / "copy" / "release.private"
        shutil.copytree(tmp_path / "release.private", private, symlinks=links)
        return tmp_path / "copy" / "release"

    return copy


@pytest.mark.parametrize("links", [False, True])
def test_two_copies_of_a_private_folder_publish_one_content(
    links, copied, stopped, tmp_path, ensemble, queries, make_plan, ledger, monkeypatch
):
    """Both were stopped before their commit; the second comes to other bytes, of the same noise."""
    other, arguments = copied(links), (ensemble, queries, make_plan())
    if links:  # both keys are one; the second reaches its commit before the first destroys it
        with monkeypatch.context() as patch:
            patch.setattr(publish_module, "SOFTWARE", "canal of tomorrow")
            patch.setattr(Ledger, "commit", stop)
            with pytest.raises(Stop):
                create(other, *arguments, ledger=ledger)
    create(stopped, *arguments, ledger=ledger)
    rows = ledger.rows()
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "SOFTWARE", "canal of tomorrow")
        with pytest.raises(ReleaseError, match="released before with other content, from a copy"):
            create(other, *arguments, ledger=ledger)
    assert ledger.rows() == rows
    assert not other.exists()
    left = {path.name for path in other.with_name("release.private").iterdir()}
    assert "finished" in left
    assert not left & {"secret", ".secret", "release", "statistics.json"}
    with pytest.raises(ReleaseError, match="choose another --out"):
        create(other, *arguments, ledger=ledger)


def test_a_copy_that_was_refused_and_killed_is_cleared_by_the_next_run(
    copied, stopped, ensemble, queries, make_plan, ledger, monkeypatch
):
    """It has the key of what the other copy published, and other bytes under the same noise."""
    other, arguments = copied(False), (ensemble, queries, make_plan())
    create(stopped, *arguments, ledger=ledger)
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "SOFTWARE", "canal of tomorrow")
        patch.setattr(Workspace, "destroy", stop)
        with pytest.raises(Stop):
            create(other, *arguments, ledger=ledger)
    private = other.with_name("release.private")
    assert {"finished", "secret", "release"} <= {path.name for path in private.iterdir()}
    with pytest.raises(ReleaseError, match="choose another --out"):
        create(other, *arguments, ledger=ledger)
    left = {path.name for path in private.iterdir()}
    assert not left & {"secret", ".secret", "release", "statistics.json"}


def test_two_copies_that_come_to_the_same_bytes_are_one_release(
    copied, stopped, ensemble, queries, make_plan, ledger
):
    other = copied(False)
    for out in (stopped, other):
        create(out, ensemble, queries, make_plan(), ledger=ledger)
        assert all(check.passed for check in verify(out, ledger))
    assert len([row for row in ledger.rows() if row.action == "commit"]) == len(
        [row for row in ledger.rows() if row.action == "reserve"]
    )


def test_a_foreign_release_in_our_place_is_not_taken_for_ours(
    stopped, tmp_path, ensemble, queries, make_plan, ledger
):
    other = make_plan(epsilon=1.0)
    create(tmp_path / "other", ensemble, queries, other, seed=1)
    shutil.copytree(tmp_path / "other", stopped)
    with pytest.raises(ReleaseError, match="not ours"):
        create(stopped, ensemble, queries, make_plan(), ledger=ledger)
    assert (tmp_path / "release.private" / "secret").exists()
    shutil.rmtree(stopped)
    create(stopped, ensemble, queries, make_plan(), ledger=ledger)


def test_a_finished_release_that_is_gone_is_not_made_again(
    tmp_path, ensemble, queries, make_plan, ledger
):
    out = tmp_path / "release"
    create(out, ensemble, queries, make_plan(), ledger=ledger)
    shutil.rmtree(out)
    rows = ledger.rows()
    with pytest.raises(ReleaseError, match="from a copy"):
        create(out, ensemble, queries, make_plan(), ledger=ledger)
    assert ledger.rows() == rows


def test_the_wrong_ledger_is_named(tmp_path, ensemble, queries, make_plan, ledger, make_ledger):
    out = tmp_path / "release"
    create(out, ensemble, queries, make_plan(), ledger=ledger)
    other = make_ledger(name="other.sqlite")
    with pytest.raises(LedgerError, match="was not charged to"):
        create(out, ensemble, queries, make_plan(), ledger=other)


def test_private_folders_are_private(tmp_path, ensemble, queries, make_plan):
    (tmp_path / "release.private").mkdir(mode=0o755)
    create(tmp_path / "release", ensemble, queries, make_plan(), seed=1)
    assert (tmp_path / "release.private").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ReleaseError, match="name for a private folder"):
        create(tmp_path / "a.private", ensemble, queries, make_plan(), seed=1)
    shutil.copytree(tmp_path / "release", tmp_path / "b.private")
    with pytest.raises(ReleaseError, match="holds a release"):
        create(tmp_path / "b", ensemble, queries, make_plan(), seed=1)


def test_numbers_are_on_record_before_the_data_are_read(
    tmp_path, ensemble, queries, make_plan, make_ledger
):
    """Every sigma that is fixed, rho, lattice steps and bounds; then everything else."""
    plan, private, seen = make_plan("paper"), tmp_path / "release.private", []

    def look(count):
        seen.append(sorted(path.name for path in private.glob("*.json")))

    release = create(
        *(tmp_path / "release", ensemble, queries, plan),
        ledger=make_ledger("paper"),
        options=Options(progress=look),
    )
    assert "plan.json" in seen[0]
    assert "mechanism.json" not in seen[0]
    assert "mechanism.json" in seen[-1]
    fixed = json.loads((private / "plan.json").read_text())
    assert fixed["plan"] == plan.to_json()
    assert fixed["sigma"]["caps"] == release.manifest.statistics["caps"]["sigma"]
    assert fixed["lattice"]["features"]["step"] == release.manifest.mechanism["step"]
    assert {"caps", "importance"} < set(fixed["lattice"])
    assert sum(fixed["rho"].values()) == pytest.approx(
        release.statement["guarantee"]["paper"]["rho"], rel=1e-9
    )


def test_public_statistics_come_from_the_initialisation_alone(ensemble):
    """A teacher in its place would be published without noise."""
    with pytest.raises(ReleaseError, match="published without noise"):
        replace(ensemble, shared=ensemble.teachers[0].tap)
    taught = ensemble.teachers[0]
    named = Ensemble(ensemble.teachers, taught.digest, taught.tap)
    assert named.alike == ((taught.cohort, "the initialisation"),)


def test_an_initialisation_of_the_queries_gives_them_up(
    tmp_path, ensemble, queries, make_plan, make_ledger
):
    trained = replace(ensemble, trained_initialisation=True)
    with pytest.raises(ReleaseError, match="trained_initialisation"):
        create(tmp_path / "r", trained, queries, make_plan("paper"), seed=1)
    plan = make_plan("paper", trained_initialisation=True)
    ledger = make_ledger("paper")
    release = create(tmp_path / "r", trained, queries, plan, ledger=ledger)
    assert release.statement["guarantee"]["image"]["epsilon"] is None
    assert release.statement["guarantee"]["patient"]["epsilon"] is not None
    assert any("trained on them" in each for each in release.statement["not_protected"])
    assert all(check.passed for check in verify(release.path, ledger))
    image = make_plan("paper", unit="image", trained_initialisation=True)
    with pytest.raises(ReleaseError, match="cannot be protected"):
        create(tmp_path / "i", trained, queries, image, ledger=Ledger(tmp_path / "l"))
