"""Initialisations and teachers: the weights that they start from, what they keep and refuse."""

import json
import os
import signal
from contextlib import suppress

import numpy as np
import pytest
import torch

from canal.data import overlap
from canal.errors import CheckpointError, InvalidValueError
from canal.features.ensemble import load_ensemble
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.networks import UNetArchitecture, weights_digest
from canal.learning.prediction import predict
from canal.learning.runs import LOCK, RunFolder
from canal.learning.settings import TrainingSettings
from canal.learning.teacher import (
    initialise,
    is_random,
    labelled_by,
    load_initialisation,
    train,
    train_further,
    trained_on,
)

SMALL = UNetArchitecture(in_channels=1, base_channels=8)
SIZE = (32, 32)
SHORT = TrainingSettings(steps=4, batch_size=3, save_every=2)
RUN = {"settings.json", "metrics.jsonl", "checkpoint.json", "weights.safetensors"}


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def init(tmp_path):
    initialise(tmp_path / "init", SMALL, seed=4, size=SIZE)
    return tmp_path / "init"


def test_a_random_initialisation(init):
    network, about = checkpoint.load(init)
    assert weights_digest(network) == weights_digest(SMALL.build(seed=4)) == about.initialisation
    assert (about.size, about.data) == (SIZE, "")
    assert about.notes == {"role": "initialisation", "seed": 4, "trained": False}
    assert UNetArchitecture.from_json(about.architecture) == SMALL


def test_an_initialisation_trained_on_the_recipients_images(tmp_path, make_arrays):
    arrays, told = make_arrays(6), []
    initialise(
        tmp_path, SMALL, seed=4, size=SIZE, arrays=arrays, settings=SHORT, report=told.append
    )
    assert names(tmp_path) >= RUN
    network, about = checkpoint.load(tmp_path)
    assert about.initialisation == weights_digest(network) != weights_digest(SMALL.build(seed=4))
    assert about.data == arrays.digest
    assert about.notes["trained"]
    assert [progress.step for progress in told] == [2, 4]


def test_a_teacher_names_the_initialisation_it_started_from(init, tmp_path, make_arrays):
    start = checkpoint.describe(init)
    told = []
    for name, seed in (("north", 0), ("south", 1)):
        arrays = make_arrays(6, seed=seed)
        made = train(tmp_path / name, init, arrays, SHORT, name=name, report=told.append)
        network, about = checkpoint.load(tmp_path / name)
        assert about == made
        assert about.initialisation == start.initialisation != weights_digest(network)
        assert (about.data, about.size, about.tap) == (arrays.digest, SIZE, start.tap)
        assert about.notes == {
            "role": "teacher",
            "site": name,
            "images": 6,
            "trained_initialisation": start.notes["trained"],
        }
        assert names(tmp_path / name) >= RUN
        assert "state.safetensors" not in names(tmp_path / name)
        assert not [found for found in names(tmp_path / name) if found.endswith(".part")]
        written = json.loads((tmp_path / name / "settings.json").read_text())
        assert written["training"]["steps"] == 4
        assert written["data"] == arrays.digest
        assert written["init"] == start.initialisation
    assert len(told) == 4
    one, other = (weights_digest(checkpoint.load(tmp_path / n)[0]) for n in ("north", "south"))
    assert one != other


def test_a_chain_of_trained_initialisation_and_teacher(tmp_path, make_arrays):
    start = initialise(
        tmp_path / "init", SMALL, seed=4, size=SIZE, arrays=make_arrays(6), settings=SHORT
    )
    made = train(tmp_path / "teacher", tmp_path / "init", make_arrays(6, seed=1), SHORT)
    assert made.initialisation == start.initialisation


def test_an_initialisation_that_is_trained_further_is_another_one(init, tmp_path, make_arrays):
    arrays, told = make_arrays(6), []
    made = train_further(tmp_path / "next", init, arrays, SHORT, report=told.append)
    network, about = load_initialisation(tmp_path / "next")
    assert about == made
    assert about.initialisation == weights_digest(network)
    assert about.data == arrays.digest
    before = checkpoint.describe(init).initialisation
    assert about.notes == {"role": "initialisation", "seed": 4, "trained": True, "after": before}
    assert [progress.step for progress in told] == [2, 4]
    # It starts where the other ended: a teacher of the same images has the same weights.
    train(tmp_path / "teacher", init, arrays, SHORT)
    assert weights_digest(checkpoint.load(tmp_path / "teacher")[0]) == about.initialisation


def test_images_that_an_initialisation_labelled_itself(init, tmp_path, make_arrays):
    """What it says of them, not what they say: their own labels are never looked at."""
    arrays, more = make_arrays(6), make_arrays(5, seed=2).without_labels()
    said = labelled_by(init, more)
    assert said.labelled.all()
    assert np.array_equal(said.masks, predict(load_initialisation(init)[0], more))
    made = train_further(tmp_path / "next", init, arrays, SHORT, unlabelled=more)
    same = train_further(tmp_path / "same", init, arrays.beside(said), SHORT)
    assert made.initialisation == same.initialisation
    assert made.data == same.data != arrays.digest
    # Another initialisation says something else, and it is another folder then.
    train_further(tmp_path / "settled", init, arrays, SHORT)
    assert labelled_by(tmp_path / "settled", more).digest != said.digest


def test_a_teacher_is_not_taken_for_an_initialisation_or_trained_further(
    init, tmp_path, make_arrays
):
    """Its images are private: neither its folder nor its weights may pass for public ones."""
    arrays = make_arrays(6)
    train(tmp_path / "teacher", init, arrays, SHORT)
    with pytest.raises(CheckpointError, match="other settings or data"):
        train_further(tmp_path / "teacher", init, arrays, SHORT)
    with pytest.raises(CheckpointError, match="is no initialisation; give the one"):
        train_further(tmp_path / "next", tmp_path / "teacher", arrays, SHORT)
    train_further(tmp_path / "next", init, arrays, SHORT)
    with pytest.raises(CheckpointError, match="is no initialisation; give the one"):
        train_further(tmp_path / "next", tmp_path / "teacher", arrays, SHORT)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_a_teachers_folder_is_never_made_an_initialisation(
    whole, told, init, tmp_path, make_arrays
):
    """Nor is one that does not say what it is: its state may be of private images."""
    arrays, folder = make_arrays(6), tmp_path / "teacher"

    def stop(progress):
        if not whole:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        train(folder, init, arrays, SHORT, report=stop)
    assert ("checkpoint.json" in names(folder)) == whole
    if not told:
        (folder / "settings.json").unlink()
    for start in (init, folder) if whole else (init,):
        with pytest.raises(CheckpointError):
            train_further(folder, start, arrays, SHORT)
    with pytest.raises(CheckpointError, match="other settings" if told else "may be private"):
        initialise(folder, SMALL, seed=4, size=SIZE, arrays=arrays, settings=SHORT)
    assert ("settings.json" in names(folder)) == told


def test_an_interrupted_teacher_goes_on(init, tmp_path, make_arrays):
    arrays = make_arrays(6)

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", init, arrays, SHORT, report=stop)
    assert "state.safetensors" in names(tmp_path / "parts")
    assert "checkpoint.json" not in names(tmp_path / "parts")
    told = []
    train(tmp_path / "parts", init, arrays, SHORT, report=told.append)
    train(tmp_path / "whole", init, arrays, SHORT)
    assert [progress.step for progress in told] == [4]
    one, other = (weights_digest(checkpoint.load(tmp_path / n)[0]) for n in ("parts", "whole"))
    assert one == other


def test_images_of_another_size(init, tmp_path, make_arrays):
    with pytest.raises(CheckpointError, match=r"size \(32, 32\), the data have \(48, 32\).*--size"):
        train(tmp_path / "teacher", init, make_arrays(6, (48, 32)), SHORT)
    with pytest.raises(CheckpointError, match=r"size \(32, 32\), the data have \(48, 32\)"):
        initialise(
            tmp_path / "new",
            SMALL,
            seed=0,
            size=SIZE,
            arrays=make_arrays(6, (48, 32)),
            settings=SHORT,
        )
    with pytest.raises(InvalidValueError, match="multiple of 16"):
        initialise(tmp_path / "new", SMALL, seed=0, size=(40, 40))
    assert names(tmp_path) == {"init"}


def test_images_with_other_channels(init, tmp_path, make_arrays):
    with pytest.raises(CheckpointError, match="1 channels, the data have 3"):
        train(tmp_path / "teacher", init, make_arrays(6, channels=3), SHORT)
    with pytest.raises(CheckpointError, match="1 channels, the data have 3"):
        initialise(
            tmp_path / "new",
            SMALL,
            seed=0,
            size=SIZE,
            arrays=make_arrays(6, channels=3),
            settings=SHORT,
        )


def test_a_teacher_is_no_initialisation(init, tmp_path, make_arrays):
    train(tmp_path / "teacher", init, make_arrays(6), SHORT)
    with pytest.raises(CheckpointError, match="is no initialisation; give the one"):
        train(tmp_path / "next", tmp_path / "teacher", make_arrays(6), SHORT)


def test_other_data_or_settings_in_the_same_folder(init, tmp_path, make_arrays):
    train(tmp_path / "teacher", init, make_arrays(6), SHORT)
    before = (tmp_path / "teacher" / "weights.safetensors").read_bytes()
    sentence = "other settings or data; give another folder"
    with pytest.raises(CheckpointError, match=sentence):
        train(tmp_path / "teacher", init, make_arrays(6, seed=1), SHORT)
    with pytest.raises(CheckpointError, match=sentence):
        train(tmp_path / "teacher", init, make_arrays(6), TrainingSettings(steps=5))
    initialise(tmp_path / "other", SMALL, seed=5, size=SIZE)
    with pytest.raises(CheckpointError, match=sentence):
        train(tmp_path / "teacher", tmp_path / "other", make_arrays(6), SHORT)
    assert (tmp_path / "teacher" / "weights.safetensors").read_bytes() == before


def test_another_architecture_or_seed_in_the_same_folder(tmp_path, make_arrays):
    options = {"size": SIZE, "arrays": make_arrays(6), "settings": SHORT}
    initialise(tmp_path, SMALL, seed=0, **options)
    with pytest.raises(CheckpointError, match="other settings or data"):
        initialise(tmp_path, UNetArchitecture(1, 2, 16), seed=0, **options)
    with pytest.raises(CheckpointError, match="other settings or data"):
        initialise(tmp_path, SMALL, seed=1, **options)


def test_a_settings_file_that_was_cut_is_refused_in_a_sentence(init, tmp_path, make_arrays):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "settings.json").write_text("{")
    with pytest.raises(CheckpointError, match="other settings or data"):
        train(tmp_path / "teacher", init, make_arrays(6), SHORT)


def test_volumes(tmp_path, make_arrays):
    architecture = UNetArchitecture(1, 3, 8)
    initialise(tmp_path / "init", architecture, seed=0, size=(32, 32, 32))
    arrays = make_arrays(2, (32, 32, 32))
    settings = TrainingSettings(steps=1, batch_size=1, save_every=1)
    made = train(tmp_path / "teacher", tmp_path / "init", arrays, settings)
    assert made.size == (32, 32, 32)
    assert np.isfinite(json.loads((tmp_path / "teacher" / "metrics.jsonl").read_text())["loss"])


def test_a_finished_run_is_not_made_again(init, tmp_path, make_arrays, monkeypatch):
    arrays = make_arrays()
    made = train(tmp_path / "teacher", init, arrays, SHORT)
    monkeypatch.setattr("canal.learning.runs.fit", None)
    assert train(tmp_path / "teacher", init, arrays, SHORT) == made


def test_an_initialisation_is_not_overwritten(tmp_path):
    made = initialise(tmp_path / "init", SMALL, seed=0, size=SIZE)
    assert initialise(tmp_path / "init", SMALL, seed=0, size=SIZE) == made
    with pytest.raises(CheckpointError, match="other settings"):
        initialise(tmp_path / "init", SMALL, seed=1, size=SIZE)


def test_a_run_keeps_the_digests_of_what_it_was_trained_on(tmp_path, init, make_arrays):
    """A teacher's for its owner alone; an initialisation's with those of the ones before it."""
    first, second = make_arrays(4, seed=1), make_arrays(5, seed=2)
    train(tmp_path / "teacher", init, first, SHORT)
    kept = tmp_path / "teacher" / overlap.TRAINED_ON
    assert set(overlap.read(tmp_path / "teacher")) == set(
        overlap.digests_by_patient(first).values()
    )
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()  # a teacher that an earlier version trained learns of it when asked for again
    train(tmp_path / "teacher", init, first, SHORT)
    assert kept.is_file()

    assert trained_on(init) == ()
    train_further(tmp_path / "one", init, first, SHORT)
    train_further(tmp_path / "two", tmp_path / "one", second, SHORT)
    both = {
        *overlap.digests_by_patient(first).values(),
        *overlap.digests_by_patient(second).values(),
    }
    assert set(trained_on(tmp_path / "two")) == both
    made = tmp_path / "made"
    initialise(made, SMALL, seed=4, size=SIZE, arrays=first, settings=SHORT)
    assert set(trained_on(made)) == set(overlap.digests_by_patient(first).values())
    (tmp_path / "one" / overlap.TRAINED_ON).unlink()
    assert trained_on(tmp_path / "one") is None
    train_further(tmp_path / "three", tmp_path / "one", make_arrays(4, seed=3), SHORT)
    assert trained_on(tmp_path / "three") is None


def test_a_second_training_in_the_same_folder_is_refused(init, tmp_path, make_arrays):
    """While the first is at work, which goes on as if nobody had asked."""
    arrays, refused = make_arrays(6), []

    def meddle(progress):
        with pytest.raises(CheckpointError, match="another training is at work"):
            train(tmp_path / "teacher", init, arrays, SHORT)
        refused.append(progress.step)

    train(tmp_path / "teacher", init, arrays, SHORT, report=meddle)
    train(tmp_path / "alone", init, arrays, SHORT)
    assert refused == [2, 4]
    one, other = (weights_digest(checkpoint.load(tmp_path / n)[0]) for n in ("teacher", "alone"))
    assert one == other
    assert LOCK not in names(tmp_path / "teacher")


def test_a_training_that_was_killed_leaves_a_folder_that_goes_on(tmp_path):
    run = RunFolder(tmp_path)
    process = os.fork()
    if not process:
        with run.claim({"seed": 1}):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert LOCK in names(tmp_path)
    with run.claim({"seed": 1}):
        pass
    assert LOCK not in names(tmp_path)


def save(folder, network, **notes):
    architecture = UNetArchitecture(in_channels=1, base_channels=8)
    notes = {"role": "initialisation", "seed": 3, "trained": False} | notes
    about = Checkpoint(
        architecture=architecture.to_json(),
        initialisation=weights_digest(network),
        size=(32, 32),
        notes=notes,
    )
    checkpoint.save(folder, network, about)
    return checkpoint.describe(folder)


def test_a_trained_network_that_says_that_it_is_random(tmp_path):
    """Trained on patients, say: caps read from it would be theirs, and charged to nobody."""
    network = UNetArchitecture(in_channels=1, base_channels=8).build(seed=3)
    assert is_random(save(tmp_path / "honest", network))
    assert trained_on(tmp_path / "honest") == ()
    assert not is_random(save(tmp_path / "another-seed", network, seed=4))
    assert not is_random(save(tmp_path / "open", network, trained=True))
    with torch.no_grad():
        next(network.parameters()).add_(0.01)
    assert not is_random(save(tmp_path / "init", network))
    assert trained_on(tmp_path / "init") is None  # nobody knows
    notes = {"role": "teacher", "site": "north", "trained_initialisation": False}
    save(tmp_path / "north", network, **notes)
    ensemble = load_ensemble([tmp_path / "north"], tmp_path / "init")
    assert ensemble.trained_initialisation
