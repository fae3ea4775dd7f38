"""Whether an initialisation is random is seen in its weights, not in what a note says."""

import torch

from canal.features.ensemble import load_ensemble
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.networks import UNetArchitecture, weights_digest
from canal.learning.teacher import is_random, trained_on


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
