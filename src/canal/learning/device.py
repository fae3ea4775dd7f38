"""Where networks live: on a GPU if there is one. What goes in is moved there, what comes out back.

Batches, noise and everything that is published stay in the machine's own memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    import torch
    from torch import nn

VARIABLE = "CANAL_DEVICE"


def best() -> torch.device:
    """The device to put networks on: `$CANAL_DEVICE` (`cpu`, `cuda:1`, `mps`), or a GPU if any."""
    import torch

    asked = os.environ.get(VARIABLE, "cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidValueError(
            f"{VARIABLE} = {asked!r} cannot be used here ({str(error).splitlines()[0]}); leave it "
            "out, or say cpu"
        ) from error
    return device


def home(network: nn.Module) -> torch.device:
    """The device that a network is on."""
    import torch

    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device
