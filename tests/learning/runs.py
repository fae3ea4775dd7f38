"""A short run of a small network, and what it leaves in its folder."""

import json

from safetensors import safe_open

from canal.learning.networks import UNetArchitecture
from canal.learning.settings import TrainingSettings
from canal.learning.training import METRICS, STATE, Batches, fit

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
