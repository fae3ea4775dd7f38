"""A whole run of tiny networks, made once: two hospitals, five releases, ten students."""

import json
import shutil

import numpy as np
import pytest

from canal.data.arrays import Arrays

SIZE = (32, 32)
SITES = ("north", "south")
COMMANDS = "canal init --out init\ncanal teacher train --cohort <north>\n"


def disc_images(count):
    """Grey images with a disc on each."""
    rng = np.random.default_rng(5)
    row, column = np.mgrid[: SIZE[0], : SIZE[1]]
    masks = np.zeros((count, 1, *SIZE), dtype=np.uint8)
    for mask in masks:
        y, x = rng.uniform(8, 24, 2)
        mask[0] = np.hypot(row - y, column - x) < rng.uniform(4, 9)
    images = (rng.integers(0, 100, masks.shape) + 130 * masks).astype(np.uint8)
    return Arrays(tuple(f"case-{n:02d}" for n in range(count)), images, masks, "digest")


@pytest.fixture(scope="session")
def arrays():
    return disc_images(30)


def write_scores(folder, ids, mean, seed):
    """Made-up scores, so that a test knows what to expect."""
    from canal.learning.evaluation import Score, write_csv

    dice = np.clip(np.random.default_rng(seed).normal(mean, 0.05, len(ids)), 0, 1)
    found = [Score(n, float(d), float(d / (2 - d)), 3.0) for n, d in zip(ids, dice, strict=True)]
    write_csv(folder / "scores.csv", found)


def attack(release, **other):
    """A file as `canal attack` writes it."""
    return {
        "format": "canal-attack/2",
        "attack": "membership of images",
        "release": release,
        "members": 12,
        "others": 10,
        "auc": 0.53,
        "auc_interval": [0.4, 0.66],
        "tpr": {"0.01": 0.02, "0.001": 0.0},
        "roc": [[0, 0.0], [0.02, 0.05], [0.3, 0.36], [1, 1]],
        "allowed": {"unit": "image", "mu": 0.8},
        "like_chance": True,
        "words": ["Noise of 1e-05 was guessed."],
    } | other


def teach(out, init, recipient, private, ledger):
    """A release of adapters: the last layer, taught in two rounds."""

    from canal.gradients.patients import Patients
    from canal.gradients.plan import AdapterPlan
    from canal.gradients.release import train
    from canal.gradients.start import share
    from canal.gradients.target_modules import Adapter

    head = Adapter(("head",))
    shared = share(init, recipient, head, "flat", views=0)
    sites = [Patients(*each, views=0) for each in zip(SITES, private, strict=True)]
    plan = AdapterPlan(*(8.0, 8, len(shared.coordinates)), sites=len(sites), rounds=2, adapter=head)
    return train(out, sites, shared, plan, ledger=ledger)


@pytest.fixture(scope="session")
def made_run(tmp_path_factory, arrays):
    """The folder; a test that changes it takes `run_folder`."""
    from canal.features import Plan, Queries, create, load_ensemble
    from canal.gradients.store import save_taught
    from canal.learning.networks import UNetArchitecture
    from canal.learning.settings import TrainingSettings
    from canal.learning.teacher import initialise, train
    from canal.privacy import Ledger, Participants
    from canal.student import train as distil

    folder = tmp_path_factory.mktemp("run")
    training = TrainingSettings(steps=3, batch_size=4, save_every=3)
    recipient, test = arrays.rows(arrays.ids[:12]), arrays.ids[12:22]
    init = folder / "init"
    initialise(init, UNetArchitecture(in_channels=1, base_channels=8), seed=0, size=SIZE)
    for number, site in enumerate(SITES):
        private = arrays.rows(arrays.ids[22 + 4 * number : 26 + 4 * number])
        train(folder / "hospitals" / site, init, private, training, name=site)
        write_scores(folder / "hospitals" / site, test, 0.3, number)
    ensemble = load_ensemble([folder / "hospitals" / site for site in SITES], init)
    ledger = Ledger(folder / "ledger.sqlite")
    for unit in ("paper", "patient"):
        ledger.set_budget(SITES, unit, epsilon=1e4, delta=1e-5)
    releases = {}
    for name, preset, choices, noise in (
        ("canal", "paper", {}, {"ledger": ledger}),
        ("uniform", "paper", {"allocation": "uniform"}, {"ledger": ledger}),
        ("honest", "honest", {}, {"seed": 1}),
        ("none", "paper", {"allocation": "none"}, {"not_private": True}),
    ):
        plan = Plan.preset(
            preset,
            epsilon=8.0,
            participants=Participants(len(SITES), len(recipient.ids)),
            channels=128,
            grid=(2, 2),
            **choices,
        )
        queries, out = Queries.of(recipient), folder / "releases" / name
        releases[name] = create(out, ensemble, queries, plan, **noise)
    ledger.set_budget(SITES, "membership", epsilon=100, delta=1e-5)
    private = [arrays.rows(arrays.ids[22 + 4 * n : 26 + 4 * n]) for n in range(len(SITES))]
    releases["adapters"] = teach(folder / "releases" / "adapters", init, recipient, private, ledger)
    for number, (name, mode, release, mean) in enumerate(
        (
            ("s-alone", "alone", None, 0.70),
            ("s-noise", "noise-only", "canal", 0.70),
            ("s-canal", "release", "canal", 0.80),
            ("s-uniform", "release", "uniform", 0.70),
            ("s-honest", "release", "honest", 0.60),
            ("s-none", "noiseless", "none", 0.85),
            ("s-pooled", "pooled", None, 0.90),
            ("s-adapters", "adapters", "adapters", 0.75),
            ("s-pupil", "predictions", "adapters", 0.72),
        )
    ):
        distil(folder / name, init, recipient, training, release=releases.get(release), mode=mode)
        write_scores(folder / name, test, mean, 10 + number)
    save_taught(folder / "s-taught", init, releases["adapters"])
    write_scores(folder / "s-taught", test, 0.68, 30)
    found = attack(releases["canal"].manifest.digest)
    (folder / "attack.json").write_text(json.dumps(found))
    (folder / "commands.txt").write_text(COMMANDS)
    (folder / "split.json").write_text("{}")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "checkpoint.json").write_text("broken")
    return folder


@pytest.fixture
def run_folder(tmp_path, made_run):
    """A copy to change, without the weights."""
    ignored = shutil.ignore_patterns("weights.safetensors", "tensorboard", "*.private")
    return shutil.copytree(made_run, tmp_path / "run", ignore=ignored)
