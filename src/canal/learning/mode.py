"""Eval mode for as long as it takes, and every module's own mode back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode; `network.train()` after it would thaw layers that were frozen."""
    was_training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in was_training:
            module.training = True
