"""The loop: what a step is, that it learns, and what it tells."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from canal.errors import CheckpointError
from canal.learning import training
from canal.learning.networks import weights_digest
from canal.learning.settings import TrainingSettings
from canal.learning.training import STATE, one_cycle
from learning.runs import ARCHITECTURE, SHORT, batches_of, lines, step_of, trained


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
