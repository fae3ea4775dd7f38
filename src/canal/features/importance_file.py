"""Public importance scores from a file: JSON list, NumPy array, or numbers in a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from canal.errors import InvalidValueError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def read_importance(path: Path) -> NDArray[np.float64]:
    """Read one score a channel.

    Args:
        path: `.json` (a list), `.npy`, or any text of numbers divided by commas or white space.
    """
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            values = np.array(json.loads(path.read_text()))
        else:
            values = np.array(path.read_text().replace(",", " ").split())
        return np.asarray(values, dtype=np.float64).ravel()
    except OSError as error:
        raise InvalidValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise InvalidValueError(
            f"{path} holds no list of numbers ({error}); write one score for each channel"
        ) from error
