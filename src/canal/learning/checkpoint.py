"""Networks on disk: safetensors for the weights, JSON for their description. Never pickle.

A file may come from another hospital. It is checked before it is used: both files whole, of the
stated architecture, every weight finite (unless asked otherwise: a release counts a broken teacher
as zero). The digests find damage, not malice: whoever can change the files can change the digests.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.errors import CheckpointError
from canal.files import replace_file
from canal.learning.networks import BOTTLENECK, UNetArchitecture, best, lay_out

if TYPE_CHECKING:
    from torch import nn

_FORMAT = "canal-checkpoint/1"
WEIGHTS = "weights.safetensors"
DESCRIPTION = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """The description of a network, beside its weights.

    Args:
        architecture: as `UNetArchitecture.to_json`, or a name of the hospital's own.
        tap: the layer whose features are released.
        initialisation: digest of the weights that training started from; averaging teachers means
            something only where this is the same.
        data: digest of the images that it was trained on; empty for a random initialisation.
        size: of the images.
        notes: anything else, for people.
    """

    architecture: dict[str, Any]
    tap: str = BOTTLENECK
    initialisation: str = ""
    data: str = ""
    size: tuple[int, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, network: nn.Module, description: Checkpoint) -> None:
    """Write weights and description; the description last, with the digests of both."""
    import torch
    from safetensors.torch import save as to_bytes

    folder.mkdir(parents=True, exist_ok=True)
    state = {  # copies, since weights that are tied share memory, which safetensors refuses
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    weights = to_bytes(state)
    replace_file(folder / WEIGHTS, weights)
    content = {
        "format": _FORMAT,
        "weights": hashlib.sha256(weights).hexdigest(),
        **asdict(description),
    }
    content = json.loads(json.dumps(content))  # as a reader will see it: lists, keys of text
    content["digest"] = _digest(content)
    replace_file(folder / DESCRIPTION, (json.dumps(content, indent=1) + "\n").encode())


def describe(folder: Path) -> Checkpoint:
    """Read the description of a checkpoint, without its weights."""
    return _description(folder)[0]


def load(
    folder: Path, network: nn.Module | None = None, *, finite: bool = True
) -> tuple[nn.Module, Checkpoint]:
    """Read a network and its description.

    Args:
        folder: of the checkpoint.
        network: to load into, where the architecture is the hospital's own.
        finite: refuse weights that are not finite numbers.

    Raises:
        CheckpointError: damaged, truncated, of another architecture, or with a weight that is not
            a finite number.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    description, stated = _description(folder)
    try:
        content = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / WEIGHTS}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != stated:
        raise CheckpointError(
            f"{folder / WEIGHTS} is not what {DESCRIPTION} describes: truncated or changed on the "
            "way; ask for it again"
        )
    try:
        state = from_bytes(content)
    # A header may promise a type that torch has not (KeyError) or a shape that the bytes have not.
    except (SafetensorError, KeyError, ValueError, RuntimeError, AssertionError) as error:
        raise CheckpointError(f"{folder / WEIGHTS} is no safetensors file: {error}") from error
    built = network is None
    if network is None:
        # Compared before any memory is taken: the description may ask for terabytes.
        with torch.device("meta"):
            network = _build(description, folder)
    _check_weights(folder, network.state_dict(), state)
    for name, tensor in state.items():
        if finite and tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{folder}: weight {name} holds NaN or infinity; training diverged there, ask "
                "for another checkpoint"
            )
    # What was built has no memory yet: it takes the weights themselves, and is not drawn first.
    network.load_state_dict(state, assign=built)
    return (lay_out(network) if built else network).to(best()), description


def _description(folder: Path) -> tuple[Checkpoint, str]:
    path = folder / DESCRIPTION
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        if content.pop("digest") != _digest(content):
            raise ValueError("changed on the way")
        description = Checkpoint(
            architecture=dict(content["architecture"]),
            tap=str(content["tap"]),
            initialisation=str(content["initialisation"]),
            data=str(content["data"]),
            size=tuple(int(side) for side in content["size"]),
            notes=dict(content["notes"]),
        )
        return description, str(content["weights"])
    except OSError as error:
        raise CheckpointError(
            f"{folder} holds no checkpoint ({error.strerror}); give a folder with {WEIGHTS} and "
            f"{DESCRIPTION}"
        ) from error
    # OverflowError: a size of 1e999; RecursionError: a thousand brackets.
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be understood ({error!r}); ask for it again"
        ) from error


def _build(description: Checkpoint, folder: Path) -> nn.Module:
    family = description.architecture.get("family")
    if family != "monai.BasicUNet":
        raise CheckpointError(
            f"{folder} holds a network of family {family!r}; build it yourself and pass it to "
            "load()"
        )
    try:
        return UNetArchitecture.from_json(description.architecture).build(seed=0)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{folder}: unknown architecture: {error}") from error


def _check_weights(folder: Path, want: dict[str, Any], got: dict[str, Any]) -> None:
    if want.keys() != got.keys():
        odd = sorted(want.keys() ^ got.keys())
        raise CheckpointError(
            f"{folder} is of another architecture: {odd[0]} and {len(odd) - 1} more weights are on "
            "one side only"
        )
    for name, tensor in want.items():
        if tensor.shape != got[name].shape:
            raise CheckpointError(
                f"{folder} is of another architecture: {name} has shape {tuple(got[name].shape)}, "
                f"not {tuple(tensor.shape)}"
            )
        if tensor.dtype != got[name].dtype:
            raise CheckpointError(
                f"{folder} is of another architecture: {name} holds {got[name].dtype}, "
                f"not {tensor.dtype}"
            )


def _digest(content: dict[str, Any]) -> str:
    """A digest of the values of a description, whatever the white space between them."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
