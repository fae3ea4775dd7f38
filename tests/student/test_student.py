"""Training a student: what it reads, what it minimises, and that arms differ in one thing only."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from xxhash import xxh3_128_hexdigest

from canal.errors import CheckpointError, InvalidValueError, ReleaseError
from canal.features.distillation import FeatureMatching, Projected, Targets
from canal.gradients.store import load_taught, save_taught
from canal.learning import checkpoint
from canal.learning.augmentation import orient
from canal.learning.checkpoint import Checkpoint
from canal.learning.distillation import Predictions, StudentLoss, mean_prediction
from canal.learning.networks import BOTTLENECK, UNetArchitecture, task_loss, weights_digest
from canal.learning.settings import DistillSettings, TrainingSettings
from canal.learning.teacher import initialise
from canal.learning.training import Batches
from canal.release.manifest import MANIFEST, Manifest
from canal.release.store import open_release
from canal.student import train

SIZE = (64, 64)
SHORT = TrainingSettings(steps=4, batch_size=4, save_every=2)


def digest(folder):
    return weights_digest(checkpoint.load(folder)[0])


def student_of(init, targets):
    network, about = checkpoint.load(init)
    torch.manual_seed(0)
    return Projected(network, about.tap, 128, targets.channels, dims=2)


def loss_of(arrays, targets, steps=1):
    about = Checkpoint({})
    training = TrainingSettings(steps=steps)
    return StudentLoss(arrays, FeatureMatching(targets, arrays, about, training))


def test_arms_share_everything_but_the_targets(init, arrays, make_release, tmp_path):
    release = make_release()
    for mode in ("release", "noise-only", "alone"):
        for turn in ("first", "again"):
            made = train(
                tmp_path / f"{mode}-{turn}", init, arrays, SHORT, release=release, mode=mode
            )
            assert made.notes == {
                "role": "student",
                "mode": mode,
                "images": 12,
                "labelled": 12,
                "release": None if mode == "alone" else release.manifest.digest,
                # A research run: whoever listens to it carries that on.
                **({"stamp": release.statement["stamp"]} if mode == "release" else {}),
            }
        assert digest(tmp_path / f"{mode}-first") == digest(tmp_path / f"{mode}-again")
    assert (
        len({digest(tmp_path / f"{mode}-first") for mode in ("release", "noise-only", "alone")})
        == 3
    )
    # A feature loss of no weight leaves the student alone, to the bit.
    off = DistillSettings(feature_weight=0.0)
    train(tmp_path / "off", init, arrays, SHORT, off, release=release)
    assert digest(tmp_path / "off") == digest(tmp_path / "alone-first")


def test_the_loss_by_hand(init, arrays, make_release):
    """Supervised and feature loss of a turned batch, each from its own definition."""
    release, settings = make_release(), DistillSettings(feature_weight=0.3)
    targets = Targets(release, settings)
    student = student_of(init, targets)
    batch = Batches(arrays, batch_size=6, augment=True, seed=4)[3]
    assert len(set(batch.orientations.tolist())) > 1
    loss, logits = loss_of(arrays, targets, steps=10)(student, batch)
    caught = []
    layer = dict(student.network.named_modules())[BOTTLENECK]
    handle = layer.register_forward_hook(lambda *what: caught.append(what[2]))
    torch.testing.assert_close(student(batch.images), logits)
    handle.remove()
    ours = student.adapter(caught[0])
    names = [arrays.ids[row] for row in batch.rows]
    turned = orient(targets.batch(names), batch.orientations)
    want = task_loss(logits, batch.masks).mean() + 0.3 * targets.distance(ours, turned).mean()
    torch.testing.assert_close(loss, want)


def test_a_turned_target_belongs_to_the_turned_image(make_release, arrays):
    """Turning an image turns a convolution's output alike; the target must follow."""
    batch = Batches(arrays, batch_size=12, augment=True, seed=1)[0]
    pooled = torch.nn.functional.avg_pool2d(torch.from_numpy(arrays.masks).float(), 16)
    turned = orient(pooled[torch.from_numpy(batch.rows)], batch.orientations)
    torch.testing.assert_close(torch.nn.functional.avg_pool2d(batch.masks, 16), turned)


def test_images_without_a_label_have_the_feature_loss_alone(init, arrays, make_release):
    targets = Targets(make_release(), DistillSettings())
    batch = Batches(arrays, batch_size=12, augment=False, seed=0)[0]
    losses = []
    for unlabelled in (arrays.ids, ()):
        some = replace(arrays, unlabelled=frozenset(unlabelled))
        student = student_of(init, targets)
        with torch.no_grad():
            losses.append(float(loss_of(some, targets)(student, batch)[0]))
    with torch.no_grad():
        logits, ours = student_of(init, targets).matched(batch.images)
    names = [arrays.ids[row] for row in batch.rows]
    features = 0.1 * float(targets.distance(ours, targets.batch(names)).mean())
    assert losses[0] == pytest.approx(features, rel=1e-5)
    assert losses[1] == pytest.approx(features + float(task_loss(logits, batch.masks).mean()))


def test_images_that_nobody_asked_about_have_the_supervised_loss_alone(init, arrays, make_release):
    targets = Targets(make_release(), DistillSettings())
    strangers = replace(arrays, ids=tuple(f"other {name}" for name in arrays.ids))
    batch = Batches(strangers, batch_size=4, augment=False, seed=0)[0]
    student = student_of(init, targets)
    loss, logits = loss_of(strangers, targets)(student, batch)
    torch.testing.assert_close(loss, task_loss(logits, batch.masks).mean())


def test_the_weight_decays_to_nothing(arrays, make_release):
    def matching(**knobs):
        targets = Targets(make_release(), DistillSettings(**knobs))
        return FeatureMatching(targets, arrays, Checkpoint({}), TrainingSettings(steps=100))

    weights = [matching(schedule="decay").weight(step) for step in (0, 50, 100)]
    np.testing.assert_allclose(weights, [0.1, 0.05, 0.0], atol=1e-12)
    assert matching().weight(0) == matching().weight(99) == 0.1


def test_no_teacher_is_loaded_and_no_noise_is_drawn(
    init, arrays, make_release, tmp_path, monkeypatch
):
    """The release is a folder of integers by now; nothing else is asked."""
    release, opened = make_release(), []
    load = checkpoint.load
    monkeypatch.setattr(
        checkpoint, "load", lambda folder, *a: opened.append(folder) or load(folder, *a)
    )
    for name in ("ensemble", "release", "mechanism"):
        module = sys.modules[f"canal.features.{name}"]
        for noun in ("Ensemble", "FeatureMechanism", "Teacher", "create"):
            if hasattr(module, noun):
                monkeypatch.setattr(
                    module, noun, lambda *a, **k: pytest.fail("a teacher was asked")
                )
    monkeypatch.setattr("canal.privacy.randomness.Stream.words", lambda *a: pytest.fail("noise"))
    train(tmp_path / "s", init, arrays, SHORT, release=release)
    assert opened == [init]


def test_what_determines_a_student_is_written_down(init, arrays, make_release, tmp_path):
    release = make_release()
    train(tmp_path / "s", init, arrays, SHORT, release=release)
    written = json.loads((tmp_path / "s" / "settings.json").read_text())
    assert written["release"] == release.manifest.digest
    assert written["mode"] == "release"
    assert written["distill"]["feature_weight"] == 0.1
    with pytest.raises(CheckpointError, match="other settings"):
        train(tmp_path / "s", init, arrays, SHORT, release=release, mode="noise-only")


def test_the_loss_of_predictions_by_hand(init, arrays, adapters):
    """Labels where there are some; everywhere the cross-entropy with what the network says."""
    network, _ = checkpoint.load(init)
    taught, _ = load_taught(init, adapters)
    some = replace(arrays, unlabelled=frozenset(arrays.ids[::2]))
    batch = Batches(some, batch_size=12, augment=True, seed=2)[0]
    loss, logits = StudentLoss(some, Predictions(mean_prediction([taught])))(network, batch)
    with torch.no_grad():
        said = taught(batch.images).sigmoid()
    mine = logits.sigmoid()
    entropy = -(said * mine.log() + (1 - said) * (1 - mine).log()).mean()
    known = [row for row in range(12) if batch.rows[row] % 2]
    want = task_loss(logits, batch.masks)[known].mean() + entropy
    torch.testing.assert_close(loss, want)
    loss.backward()
    assert all(weight.grad is None for weight in taught.parameters())


def test_adapters_are_where_a_student_starts(init, arrays, adapters, tmp_path):
    """All but nothing is learned in two steps of no length."""
    still = replace(SHORT, steps=2, learning_rate=1e-12, weight_decay=0.0)
    made = train(tmp_path / "s", init, arrays, still, release=adapters, mode="adapters")
    assert made.notes["release"] == adapters.digest
    taught, _ = load_taught(init, adapters)
    shared, _ = checkpoint.load(init)
    found = checkpoint.load(tmp_path / "s")[0].state_dict()
    for name, weight in taught.state_dict().items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-9)
    assert any(not torch.equal(found[name], old) for name, old in shared.state_dict().items())


def test_predictions_need_no_label(init, arrays, adapters, tmp_path):
    blind = arrays.without_labels()
    for turn in ("first", "again"):
        made = train(tmp_path / turn, init, blind, SHORT, release=adapters, mode="predictions")
    assert (made.notes["mode"], made.notes["labelled"]) == ("predictions", 0)
    assert made.initialisation == checkpoint.describe(init).initialisation
    assert digest(tmp_path / "first") == digest(tmp_path / "again")
    with pytest.raises(InvalidValueError, match="mode adapters learns from nothing else"):
        train(tmp_path / "blind", init, blind, SHORT, release=adapters, mode="adapters")


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        ("release", "one of adapters; give such a one, or take mode adapters or predictions"),
        ("noise-only", "one of adapters"),
        ("adapters", "one of features; give such a one, or take mode release"),
        ("predictions", "one of features"),
    ],
)
def test_a_mode_wants_its_kind_of_release(
    init, arrays, make_release, adapters, tmp_path, mode, word
):
    wrong = make_release() if mode in ("adapters", "predictions") else adapters
    with pytest.raises(InvalidValueError, match=word):
        train(tmp_path / "s", init, arrays, SHORT, release=wrong, mode=mode)
    assert not list(tmp_path.iterdir())


def test_a_student_starts_where_its_release_started(init, arrays, make_release, adapters, tmp_path):
    """Features of one initialisation say nothing about another; the sentence has the way out."""
    other = tmp_path / "other"
    initialise(other, UNetArchitecture(in_channels=1, base_channels=8), seed=1, size=SIZE)
    for release, mode in ((make_release(), "release"), (adapters, "predictions")):
        for wrong in ("noise-only", "release") if mode == "release" else ("predictions",):
            with pytest.raises(InvalidValueError, match="give that initialisation with --init"):
                train(tmp_path / "s", other, arrays, SHORT, release=release, mode=wrong)
    assert not (tmp_path / "s").exists()
    train(tmp_path / "s", other, arrays, SHORT, mode="alone")


def forged(release, folder, change):
    """A copy in which a forger changed the manifest, and every digest that readers look at."""
    shutil.copytree(release.path, folder)
    manifest = json.loads(release.manifest.to_bytes())
    change(folder, manifest)
    del manifest["digest"], manifest["format"]
    (folder / MANIFEST).write_bytes(Manifest(**manifest).to_bytes())
    return open_release(folder)


def swap_shard(folder, manifest):
    """Other integers, of the digest that readers look at; SHA-256 is left as it was."""
    entry = manifest["shards"][0]
    content = bytearray((folder / entry["file"]).read_bytes())
    content[-2] ^= 1
    (folder / entry["file"]).write_bytes(content)
    entry["xxh3_128"] = xxh3_128_hexdigest(bytes(content))


def lower_epsilon(_folder, manifest):
    manifest["statement"]["epsilon_asked"] = 1.0


@pytest.mark.parametrize(
    ("change", "word"),
    [(swap_shard, "is not what the manifest describes"), (lower_epsilon, "does not follow")],
)
def test_a_forged_release_is_refused_before_it_is_used(
    init, arrays, make_release, adapters, tmp_path, change, word
):
    for number, (release, mode) in enumerate(
        ((make_release(), "release"), (make_release(), "noise-only"), (adapters, "adapters"))
    ):
        found = forged(release, tmp_path / str(number), change)
        with pytest.raises(ReleaseError, match=word):
            train(tmp_path / "s", init, arrays, SHORT, release=found, mode=mode)
    with pytest.raises(ReleaseError, match=word):
        save_taught(tmp_path / "s", init, found)
    assert not (tmp_path / "s").exists()
    # Negative control: a copy of which nothing was changed.
    honest = forged(make_release(), tmp_path / "copy", lambda *_: None)
    train(tmp_path / "s", init, arrays, SHORT, release=honest)


def test_errors(init, arrays, make_release, tmp_path):
    with pytest.raises(InvalidValueError, match="needs a release"):
        train(tmp_path / "a", init, arrays, SHORT)
    strangers = replace(arrays, ids=tuple(f"other {name}" for name in arrays.ids))
    with pytest.raises(InvalidValueError, match="none of the 12 images"):
        train(tmp_path / "b", init, strangers, SHORT, release=make_release())
    blind = replace(arrays, unlabelled=frozenset(arrays.ids))
    with pytest.raises(InvalidValueError, match="no image has a label"):
        train(tmp_path / "c", init, blind, SHORT, mode="alone")
    bent = replace(SHORT, deform=1.0)
    with pytest.raises(InvalidValueError, match="deform = 1"):
        train(tmp_path / "d", init, arrays, bent, release=make_release())
    assert not list(tmp_path.iterdir())
