"""Files that are there whole or not at all, whenever the power goes."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of either."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except IsADirectoryError:
        part.unlink(missing_ok=True)
        raise


def fsync_folder(folder: Path) -> None:
    """Have the names in a folder on disk, not only the files behind them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
