"""Training: batches follow from seed and step; the loop; a killed run ends with the same bits."""

import importlib.util
import json
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

from canal.errors import CheckpointError, InvalidValueError
from canal.learning import training
from canal.learning.networks import UNetArchitecture, to_float, weights_digest
from canal.learning.settings import TrainingSettings
from canal.learning.training import METRICS, STATE, Batches, fit, one_cycle

ARCHITECTURE = UNetArchitecture(in_channels=1, base_channels=8)
SHORT = TrainingSettings(steps=6, batch_size=3, save_every=2, seed=1)


def batches_of(arrays, settings):
    return Batches(
        arrays, batch_size=settings.batch_size, augment=settings.augment, seed=settings.seed
    )


def trained(folder, arrays, settings=SHORT, **options):
    network = ARCHITECTURE.build(seed=0)
    fit(network, batches_of(arrays, settings), settings, folder, **options)
    return network


def lines(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def step_of(folder):
    with safe_open(folder / STATE, framework="pt") as file:
        return int(file.metadata()["step"])


SIZES = [(6, 6), (4, 6), (4, 6, 6), (6, 4, 2), (4, 4, 4)]


def assert_same(one, other):
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.masks, other.masks)
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.orientations, other.orientations)


@pytest.mark.parametrize("deform", [0.0, 1.0])
@pytest.mark.parametrize("size", [(8, 8), (8, 12), (4, 8, 8)])
def test_random_access_is_sequential_access(make_arrays, size, deform):
    arrays = make_arrays(7, size, channels=2)

    def batches():
        return Batches(arrays, batch_size=3, augment=True, seed=5, deform=deform)

    first, second = batches(), batches()
    sequential = [first[step] for step in range(12)]
    for step in np.random.default_rng(0).permutation(12).tolist():
        assert_same(second[step], sequential[step])
    assert_same(batches()[11], sequential[11])


def test_deformation_comes_behind_the_rest_and_has_draws_of_its_own(make_arrays):
    arrays = make_arrays(6)
    plain, bent = (
        Batches(arrays, batch_size=4, augment=True, seed=5, deform=deform)[3]
        for deform in (0.0, 1.0)
    )
    assert np.array_equal(plain.rows, bent.rows)
    assert np.array_equal(plain.orientations, bent.orientations)
    assert not torch.equal(plain.images, bent.images)
    assert (plain.deformed, bent.deformed) == (False, True)


def test_targets_turn_with_their_images_and_cannot_be_bent(make_arrays):
    arrays = make_arrays(6)
    targets = torch.tensor(arrays.masks).float()
    plain, bent = (
        Batches(arrays, batch_size=4, augment=True, seed=5, deform=deform)[0]
        for deform in (0.0, 1.0)
    )
    assert torch.equal(plain.turn(targets[plain.rows]), plain.masks)
    some = [3, 1]
    assert torch.equal(plain.turn(targets[plain.rows[some]], some), plain.masks[some])
    with pytest.raises(InvalidValueError, match="deform at 0"):
        bent.turn(targets[bent.rows])


def test_the_global_generators_have_no_say_and_are_untouched(make_arrays):
    batches = Batches(make_arrays(7), batch_size=3, augment=True, seed=5)
    torch.manual_seed(0)
    before, numpys = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    one = batches[0]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)
    torch.manual_seed(1)
    assert_same(batches[0], one)


@pytest.mark.parametrize("batch_size", [1, 3, 5, 7, 16, 500])
def test_every_image_once_a_pass(make_arrays, batch_size):
    batches = Batches(make_arrays(7), batch_size=batch_size, augment=False, seed=0)
    steps = -(-7 * 80 // batch_size)  # past the 64 passes whose order is remembered
    rows = np.concatenate([batches[step].rows for step in range(steps)])[: 7 * 80]
    passes = rows.reshape(80, 7)
    assert (np.sort(passes, axis=1) == np.arange(7)).all()
    assert len({tuple(order) for order in passes.tolist()}) > 70  # 5040 orders, 80 draws


def test_seeds_and_steps_differ(make_arrays):
    arrays = make_arrays(12)
    one, other = (Batches(arrays, batch_size=4, augment=True, seed=seed) for seed in (0, 1))
    assert not torch.equal(one[0].images, other[0].images)
    # The same rows come again in the next pass, otherwise oriented and lit.
    whole = Batches(arrays, batch_size=12, augment=True, seed=0)
    a, b = (whole[step].images[np.argsort(whole[step].rows)] for step in (0, 1))
    assert not torch.equal(a, b)


def test_without_augmentation_the_pixels_are_the_datas(make_arrays):
    arrays = make_arrays(5, channels=3)
    batch = Batches(arrays, batch_size=4, augment=False, seed=0)[1]
    pixels = (batch.images + 1) * 127.5
    np.testing.assert_allclose(pixels.numpy(), arrays.images[batch.rows], atol=1e-4)
    assert np.array_equal(batch.masks.numpy(), arrays.masks[batch.rows])
    assert (batch.orientations == 0).all()
    assert batch.images.dtype == batch.masks.dtype == torch.float32


def test_to_float_spans_minus_one_to_one():
    assert to_float(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1, 1]


def test_the_arrays_are_not_changed(make_arrays):
    arrays = make_arrays(4)
    images, masks = arrays.images.copy(), arrays.masks.copy()
    for step in range(3):
        batch = Batches(arrays, batch_size=4, augment=step > 0, seed=0)[step]
        batch.images.zero_()
        batch.masks.fill_(7)
    assert np.array_equal(arrays.images, images)
    assert np.array_equal(arrays.masks, masks)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_size": 0}, "batch_size = 0 must be at least 1"),
        ({"seed": -1}, "seed = -1 must be at least 0"),
    ],
)
def test_errors_name_the_value(make_arrays, values, sentence):
    with pytest.raises(InvalidValueError, match=sentence):
        Batches(make_arrays(3), **{"batch_size": 2, "augment": False, "seed": 0, **values})


def test_no_images_no_batches(make_arrays):
    with pytest.raises(InvalidValueError, match="no images to train on"):
        Batches(make_arrays(3).rows([]), batch_size=2, augment=False, seed=0)


@pytest.mark.parametrize("steps", [2, 7, 10, 101, 1500])
def test_one_cycle_is_torchs(steps):
    """The same curve; torch puts the peak at `pct_start · steps - 1`, we at 0.3 · (steps - 1)."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1.0)
    share = (0.3 * (steps - 1) + 1) / steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=2e-3,
        total_steps=steps,
        pct_start=share,
        anneal_strategy="cos",
        div_factor=25,
        final_div_factor=400,  # of the first rate: 25 · 400 = 10,000 of the peak
        cycle_momentum=False,
    )
    want = []
    for _ in range(steps):
        want.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(want) < steps:
            schedule.step()
    found = [one_cycle(step, steps, 2e-3) for step in range(steps)]
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-15)
    assert found[-1] == pytest.approx(2e-3 / 1e4)


def test_one_cycle_of_one_step():
    assert one_cycle(0, 1, 1.0) == pytest.approx(1 / 25)


def test_the_loop_is_plain_adamw(make_arrays, tmp_path):
    """Against the loop that anyone would write, bit for bit."""
    arrays = make_arrays(6)
    network, batches = ARCHITECTURE.build(seed=0), batches_of(arrays, SHORT)
    optimizer = torch.optim.AdamW(network.parameters(), lr=SHORT.learning_rate, weight_decay=0.01)
    network.train()
    for step in range(SHORT.steps):
        optimizer.param_groups[0]["lr"] = one_cycle(step, SHORT.steps, SHORT.learning_rate)
        optimizer.zero_grad()
        loss, _ = training.supervised(network, batches[step])
        loss.backward()
        optimizer.step()
    assert weights_digest(trained(tmp_path, arrays)) == weights_digest(network)


def test_it_learns_and_tells(make_arrays, tmp_path):
    settings = TrainingSettings(steps=40, batch_size=6, save_every=10, seed=0)
    told = []
    network = trained(tmp_path, make_arrays(12), settings, report=told.append)
    assert not network.training
    written = lines(tmp_path)
    assert [entry["step"] for entry in written] == [p.step for p in told] == [10, 20, 30, 40]
    assert [entry["loss"] for entry in written] == [p.loss for p in told]
    assert written[-1]["loss"] < 0.8 * written[0]["loss"]
    assert written[-1]["dice"] > 0.8 > written[0]["dice"]
    assert told[-1].seconds_left == 0
    assert told[0].seconds_left > 0


def test_metrics_are_means_since_the_last_line(make_arrays, tmp_path):
    arrays = make_arrays(6)
    trained(tmp_path / "often", arrays, replace(SHORT, save_every=1))
    trained(tmp_path / "seldom", arrays, replace(SHORT, save_every=4))
    each = lines(tmp_path / "often")
    for entry, part in zip(lines(tmp_path / "seldom"), (each[:4], each[4:]), strict=True):
        assert entry["step"] == part[-1]["step"]
        for name in ("loss", "dice"):
            assert entry[name] == pytest.approx(np.mean([e[name] for e in part]), rel=1e-5)


def test_a_loss_that_is_no_number_stops_the_run(make_arrays, tmp_path):
    def diverging(network, batch):
        loss, logits = training.supervised(network, batch)
        return (loss * float("nan") if state_of(tmp_path) else loss), logits

    def state_of(folder):
        return (folder / STATE).exists()

    with pytest.raises(CheckpointError, match=r"diverged before step 4: .* lower learning_rate"):
        trained(tmp_path, make_arrays(6), objective=diverging)
    assert step_of(tmp_path) == 2  # what was good is kept, what was not is not written
    assert [entry["step"] for entry in lines(tmp_path)] == [2]


def test_a_weight_that_is_no_number_stops_the_run(make_arrays, tmp_path):
    def kinked(network, batch):
        """Finite itself, with an infinite slope."""
        loss, logits = training.supervised(network, batch)
        return loss + (logits * 0).sum().sqrt(), logits

    with pytest.raises(CheckpointError, match="a weight is not finite"):
        trained(tmp_path, make_arrays(6), replace(SHORT, save_every=1), objective=kinked)
    assert not (tmp_path / STATE).exists()


def test_an_objective_of_ones_own(make_arrays, tmp_path):
    seen = []

    def objective(network, batch):
        seen.append(batch.rows)
        logits = network(batch.images)
        return logits.square().mean(), logits

    trained(tmp_path, make_arrays(6), objective=objective)
    assert len(seen) == SHORT.steps
    assert lines(tmp_path)[-1]["loss"] < lines(tmp_path)[0]["loss"]


def test_without_tensorboard(make_arrays, tmp_path, monkeypatch):
    want = weights_digest(trained(tmp_path / "with", make_arrays(6)))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert weights_digest(trained(tmp_path / "without", make_arrays(6))) == want
    assert not (tmp_path / "without" / "tensorboard").exists()


def test_with_tensorboard(make_arrays, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trained(tmp_path, make_arrays(6))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("loss", "dice"):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        want = [(entry["step"], pytest.approx(entry[name], rel=1e-6)) for entry in lines(tmp_path)]
        assert shown == want


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
