"""Checkpoints: bit-exact, and no damaged or foreign file gets past the reader."""

import hashlib
import json
import pickle
import random
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import nn

from canal.errors import CheckpointError
from canal.learning import checkpoint
from canal.learning.checkpoint import DESCRIPTION, WEIGHTS, Checkpoint
from canal.learning.networks import UNetArchitecture, weights_digest

SMALL = UNetArchitecture(in_channels=1, base_channels=8)
ABOUT = Checkpoint(
    architecture=SMALL.to_json(),
    initialisation="ab12",
    data="cd34",
    size=(32, 48),
    notes={"site": "Köln", "score": 0.5, "by number": {2: "b", 10: "a"}},
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    checkpoint.save(folder, SMALL.build(seed=1), ABOUT)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "copy"))


def reseal(folder, **changes):
    """Write what a malicious or confused sender would: other content, correct digests."""
    content = json.loads((folder / DESCRIPTION).read_text())
    del content["digest"]
    content["weights"] = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    content.update(changes)
    canonical = json.dumps(content, sort_keys=True).encode()
    content["digest"] = hashlib.sha256(canonical).hexdigest()
    (folder / DESCRIPTION).write_text(json.dumps(content))


def rewrite(folder, **tensors):
    state = from_bytes((folder / WEIGHTS).read_bytes())
    (folder / WEIGHTS).write_bytes(to_bytes({**state, **tensors}))
    reseal(folder)


def test_round_trip_is_bit_exact(folder):
    network, about = checkpoint.load(folder)
    want = SMALL.build(seed=1).state_dict()
    assert network.state_dict().keys() == want.keys()
    assert all(torch.equal(value, want[name]) for name, value in network.state_dict().items())
    assert weights_digest(network) == weights_digest(SMALL.build(seed=1))
    assert about == checkpoint.describe(folder)
    assert about.notes.pop("by number") == {"2": "b", "10": "a"}  # JSON's keys are text
    assert about == Checkpoint(**{**vars(ABOUT), "notes": {"site": "Köln", "score": 0.5}})


def test_two_saves_are_the_same_bytes(folder, tmp_path):
    network, _ = checkpoint.load(folder)
    checkpoint.save(tmp_path / "again", network, ABOUT)
    for name in (WEIGHTS, DESCRIPTION):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == sorted([WEIGHTS, DESCRIPTION])


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, -1])
def test_truncated_weights(folder, keep):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:keep])
    with pytest.raises(CheckpointError, match="truncated or changed on the way; ask for it again"):
        checkpoint.load(folder)
    reseal(folder)  # cut before it was described
    with pytest.raises(CheckpointError, match="no safetensors file"):
        checkpoint.load(folder)


def test_a_flipped_bit(folder):
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or changed"):
        checkpoint.load(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_no_number(folder, bad):
    name = "upcat_1.convs.conv_1.conv.weight"
    weight = SMALL.build(seed=1).state_dict()[name].contiguous()
    weight[-1, -1, -1, -1] = bad
    rewrite(folder, **{name: weight})
    with pytest.raises(CheckpointError, match=f"weight {name} holds NaN or infinity"):
        checkpoint.load(folder)


def test_weights_of_another_type_are_not_silently_cast(folder):
    name = "final_conv.bias"
    rewrite(folder, **{name: torch.full((1,), 1e300, dtype=torch.float64)})  # infinite as float32
    with pytest.raises(CheckpointError, match=r"final_conv\.bias holds torch\.float64, not"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (UNetArchitecture(in_channels=3, base_channels=8), "has shape"),
        (UNetArchitecture(in_channels=1, base_channels=16), "has shape"),
        (UNetArchitecture(in_channels=1, spatial_dims=3, base_channels=8), "has shape"),
        (UNetArchitecture(in_channels=1, base_channels=8 * 10**5), "has shape"),  # terabytes
    ],
)
def test_another_architecture(folder, other, sentence):
    reseal(folder, architecture=other.to_json())
    with pytest.raises(CheckpointError, match=f"another architecture: .* {sentence}"):
        checkpoint.load(folder)


def test_weights_on_one_side_only(folder):
    rewrite(folder, extra=torch.zeros(1))
    with pytest.raises(CheckpointError, match="extra and 0 more weights are on one side only"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "architecture",
    [
        {"family": "monai.BasicUNet", "depth": 5},
        {"family": "monai.BasicUNet", "base_channels": 9},
        {"family": "monai.BasicUNet", "base_channels": 16.0},
        {"family": "monai.BasicUNet", "base_channels": 8 * 10**30},
        {"family": "monai.BasicUNet", "in_channels": "3"},
        {"family": "monai.BasicUNet", "in_channels": float("nan")},
        {"family": "monai.BasicUNet", "norm": ["group"]},
    ],
)
def test_an_architecture_that_cannot_be_built(folder, architecture):
    reseal(folder, architecture=architecture)
    with pytest.raises(CheckpointError, match="unknown architecture"):
        checkpoint.load(folder)


@pytest.mark.parametrize("family", ["torchvision.fcn", None, 3])
def test_an_unknown_family_says_what_to_do(folder, family):
    reseal(folder, architecture={"family": family})
    with pytest.raises(CheckpointError, match="build it yourself and pass it to load"):
        checkpoint.load(folder)


def test_missing_files(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint .* give a folder with"):
        checkpoint.load(tmp_path / "nowhere")
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*weights\.safetensors"):
        checkpoint.load(folder)
    assert checkpoint.describe(folder).size == (32, 48)
    (folder / DESCRIPTION).unlink()
    (folder / DESCRIPTION).mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.describe(folder)


@pytest.mark.parametrize(
    "junk",
    [b"", b"{", b"[]", b"3", b'"format"', b"null", b"\xff\xfe", b"{}", b"[" * 100_000],
    ids=lambda junk: repr(junk[:8]),
)
def test_junk_for_a_description(folder, junk):
    (folder / DESCRIPTION).write_bytes(junk)
    with pytest.raises(CheckpointError, match="cannot be understood"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "canal-checkpoint/2"},
        {"size": [1e999]},
        {"size": 32},
        {"size": ["wide"]},
        {"notes": 5},
        {"architecture": "U-Net"},
    ],
)
def test_a_description_of_another_kind(folder, changes):
    reseal(folder, **changes)
    with pytest.raises(CheckpointError, match="cannot be understood"):
        checkpoint.load(folder)


@pytest.mark.parametrize("key", ["tap", "initialisation", "data", "weights", "digest", "notes"])
def test_a_description_without_a_key(folder, key):
    content = json.loads((folder / DESCRIPTION).read_text())
    del content[key]
    (folder / DESCRIPTION).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="cannot be understood"):
        checkpoint.load(folder)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [pickle.dumps, "torch"])
def test_no_pickle_is_ever_opened(folder, tmp_path, write):
    sprung = tmp_path / "sprung"
    if write == "torch":
        torch.save({"weight": Trap(sprung)}, folder / WEIGHTS)
    else:
        (folder / WEIGHTS).write_bytes(pickle.dumps(Trap(sprung)))
        pickle.loads((folder / WEIGHTS).read_bytes())  # noqa: S301  # the trap works
        sprung.unlink()
    reseal(folder)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        checkpoint.load(folder)
    assert not sprung.exists()


@pytest.mark.parametrize("dtype", ["F8_E8M0", "F4", "BOOL", "F99"])
def test_a_header_with_a_type_that_nobody_has(folder, dtype):
    content = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    next(entry for name, entry in header.items() if name != "__metadata__")["dtype"] = dtype
    changed = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(
        struct.pack("<Q", len(changed)) + changed + content[8 + length :]
    )
    reseal(folder)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        checkpoint.load(folder)


class Own(nn.Module):
    """A hospital's own: batch norm's integer counter, tied weights, bfloat16."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.norm.num_batches_tracked += 3
        self.half = nn.Linear(2, 2, dtype=torch.bfloat16)


def test_a_network_of_ones_own(tmp_path):
    saved, other = Own(), Own()
    checkpoint.save(tmp_path, saved, Checkpoint(architecture={"family": "ours"}, tap="first"))
    assert weights_digest(other) != weights_digest(saved)
    loaded, about = checkpoint.load(tmp_path, other)
    assert loaded is other
    assert weights_digest(other) == weights_digest(saved)
    assert other.second.weight is other.first.weight
    assert about.tap == "first"


def test_a_refused_checkpoint_leaves_the_network_alone(folder):
    network = UNetArchitecture(in_channels=3, base_channels=8).build(seed=2)
    before = weights_digest(network)
    with pytest.raises(CheckpointError, match="another architecture"):
        checkpoint.load(folder, network)
    assert weights_digest(network) == before


def mutated(content, rng):
    """The content with a bit flipped, a piece cut out, or a piece put in."""
    where = rng.randrange(len(content))
    kind = rng.choice(["flip", "cut", "insert"])
    if kind == "flip":
        return (
            content[:where] + bytes([content[where] ^ 1 << rng.randrange(8)]) + content[where + 1 :]
        )
    if kind == "cut":
        return content[:where] + content[where + rng.randint(1, 40) :]
    return content[:where] + rng.randbytes(rng.randint(1, 8)) + content[where:]


@pytest.mark.parametrize("name", [WEIGHTS, DESCRIPTION])
def test_200_mutations_are_found_or_change_nothing(tmp_path, name):
    rng = random.Random(20)
    saved = nn.Linear(6, 3)
    about = Checkpoint({"family": "ours"}, "layer", "ab12", "cd34", (32, 32), {"site": "north"})
    checkpoint.save(tmp_path, saved, about)
    content = (tmp_path / name).read_bytes()
    found = 0
    for _ in range(200):
        (tmp_path / name).write_bytes(mutated(content, rng))
        loaded = nn.Linear(6, 3)
        try:
            _, description = checkpoint.load(tmp_path, loaded)
        except CheckpointError:
            found += 1
        else:
            assert description == about
            assert weights_digest(loaded) == weights_digest(saved)
    assert found >= 150  # white space between JSON's values may change; little else


def test_200_mutations_of_weights_with_a_correct_digest_raise_no_other_error(tmp_path):
    rng = random.Random(21)
    checkpoint.save(tmp_path, nn.Linear(6, 3), Checkpoint({"family": "ours"}))
    content = (tmp_path / WEIGHTS).read_bytes()
    found = 0
    for _ in range(200):
        (tmp_path / WEIGHTS).write_bytes(mutated(content, rng))
        reseal(tmp_path)
        try:
            network, _ = checkpoint.load(tmp_path, nn.Linear(6, 3))
        except CheckpointError:
            found += 1
        else:
            assert all(torch.isfinite(weight).all() for weight in network.parameters())
    assert 100 <= found < 200  # flips inside of a weight are not to be told from a weight
