"""A run that was stopped or killed ends with the same bits; other runs are refused there."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from canal.errors import CheckpointError
from canal.learning import training
from canal.learning.networks import UNetArchitecture, weights_digest
from canal.learning.training import METRICS, STATE, fit
from learning.runs import SHORT, batches_of, lines, step_of, trained

WORKER = Path(__file__).parent / "training_worker.py"


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_stopped_run_ends_with_the_same_bits(make_arrays, tmp_path, stop):
    arrays = make_arrays(6)
    want = weights_digest(trained(tmp_path / "whole", arrays))

    def stopping(progress):
        if progress.step == stop:
            raise StopError

    with pytest.raises(StopError):
        trained(tmp_path / "parts", arrays, report=stopping)
    assert weights_digest(trained(tmp_path / "parts", arrays)) == want
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_moments_come_back_in_the_weights_layout(make_arrays, tmp_path):
    """A mixed layout would be slower, and other kernels may round otherwise."""
    network = trained(tmp_path, make_arrays(6))
    optimizer = torch.optim.AdamW(network.parameters())
    training._resume(tmp_path, network, optimizer, SHORT)
    moments = [
        (p, optimizer.state[p][kind])
        for p in network.parameters()
        for kind in ("exp_avg", "exp_avg_sq")
    ]
    assert moments
    assert all(moment.stride() == weight.stride() for weight, moment in moments)
    assert not any(moment.requires_grad for _, moment in moments)


class Tied(nn.Module):
    """Weights in two places, batch norm's buffers, and a layer that is never run."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm2d(1)
        self.unused = nn.Conv2d(1, 1, 1)

    def forward(self, images):
        return self.second(self.norm(self.first(images)))


def test_a_network_of_ones_own_resumes_too(make_arrays, tmp_path):
    arrays = make_arrays(6)
    start = Tied().state_dict()

    def run(folder, report=lambda progress: None):
        network = Tied()
        network.load_state_dict(start)
        fit(network, batches_of(arrays, SHORT), SHORT, folder, report=report)
        return weights_digest(network)

    def stopping(progress):
        raise StopError

    with pytest.raises(StopError):
        run(tmp_path / "parts", stopping)
    assert run(tmp_path / "parts") == run(tmp_path / "whole")


def worker_module():
    spec = importlib.util.spec_from_file_location("training_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kill_9_and_the_same_bits(make_arrays, tmp_path):
    worker, arrays = worker_module(), make_arrays(10)
    np.savez(tmp_path / "arrays.npz", images=arrays.images, masks=arrays.masks)
    want = weights_digest(worker.train(tmp_path / "whole", arrays))
    folder = tmp_path / "killed"
    rng = random.Random(9)
    points = [rng.randint(1, 250) for _ in range(2)]
    reached = []
    for point in points:  # each goes on from where the one before it died
        process = subprocess.run(
            [sys.executable, WORKER, folder, tmp_path / "arrays.npz", str(point)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == -signal.SIGKILL, process.stderr.decode()
        reached.append(step_of(folder))
    assert 5 <= reached[0] <= reached[-1] < 40
    with (folder / METRICS).open("a") as file:
        file.write('{"step": 39, "lo')  # a line that was being written
    assert weights_digest(worker.train(folder, arrays)) == want
    assert [entry["step"] for entry in lines(folder)] == list(range(5, 41, 5))
    assert lines(folder) == lines(tmp_path / "whole")


def dying_at(monkeypatch, name, moment):
    """Die as a file is written for the n-th time: what was there before must still be whole."""
    real, seen = training.replace_file, []

    def replacing(path, content):
        seen.append(path.name)
        if seen.count(name) == moment:
            path.with_name(path.name + ".part").write_bytes(content[: len(content) // 2])
            raise StopError
        real(path, content)

    monkeypatch.setattr(training, "replace_file", replacing)


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_half_written_files_are_not_read(make_arrays, tmp_path, monkeypatch, moment):
    arrays = make_arrays(6)
    want = weights_digest(trained(tmp_path / "whole", arrays))
    for name, count in ((STATE, moment), (METRICS, 1)):  # the second while resuming from the first
        with monkeypatch.context() as patch:
            dying_at(patch, name, count)
            with pytest.raises(StopError):
                trained(tmp_path / "parts", arrays)
    assert weights_digest(trained(tmp_path / "parts", arrays)) == want
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_a_finished_run_is_not_done_again(make_arrays, tmp_path):
    arrays, told = make_arrays(6), []
    want = weights_digest(trained(tmp_path, arrays))
    assert weights_digest(trained(tmp_path, arrays, report=told.append)) == want
    assert not told


@pytest.mark.parametrize("change", [{"steps": 8}, {"seed": 2}, {"learning_rate": 1e-3}])
def test_other_settings_in_the_same_folder_are_refused(make_arrays, tmp_path, change):
    trained(tmp_path, make_arrays(6))
    before = (tmp_path / METRICS).read_bytes()
    with pytest.raises(CheckpointError, match="other settings; give the same again, or another"):
        trained(tmp_path, make_arrays(6), replace(SHORT, **change))
    assert (tmp_path / METRICS).read_bytes() == before


def test_another_network_in_the_same_folder_is_refused(make_arrays, tmp_path):
    trained(tmp_path, make_arrays(6))
    other = UNetArchitecture(in_channels=1, base_channels=16).build(seed=0)
    with pytest.raises(CheckpointError, match="belongs to another network"):
        fit(other, batches_of(make_arrays(6), SHORT), SHORT, tmp_path)


def test_a_state_from_before_a_setting_came_goes_on(make_arrays, tmp_path):
    """It is noted as Python shows settings; a new one is noted only where it is used."""
    arrays = make_arrays(6)
    trained(tmp_path, arrays)
    with safe_open(tmp_path / STATE, framework="pt") as file:
        noted = file.metadata()["settings"]
    assert noted == (
        "TrainingSettings(steps=6, batch_size=3, learning_rate=0.002, weight_decay=0.01, "
        "augment=True, save_every=2, seed=1)"
    )
    trained(tmp_path, arrays)
    with pytest.raises(CheckpointError, match="other settings"):
        trained(tmp_path, arrays, replace(SHORT, deform=1.0))


@pytest.mark.parametrize("content", [b"", b"junk" * 100])
def test_a_damaged_state_says_what_to_do(make_arrays, tmp_path, content):
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(CheckpointError, match="remove it to train from the beginning"):
        trained(tmp_path, make_arrays(6))


def test_a_network_that_draws_for_itself_resumes_to_the_same_bits(tmp_path, make_arrays):
    """Dropout follows from seed and step; the caller's generator is left as it was."""

    def build():
        torch.manual_seed(5)
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 1, 1))

    def stop(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    arrays, whole, parts = make_arrays(), build(), build()
    before = torch.get_rng_state()
    fit(whole, batches_of(arrays, SHORT), SHORT, tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, batches_of(arrays, SHORT), SHORT, tmp_path / "parts", report=stop)
    parts = build()
    fit(parts, batches_of(arrays, SHORT), SHORT, tmp_path / "parts")
    assert weights_digest(whole) == weights_digest(parts)
