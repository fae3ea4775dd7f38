"""Files that are there whole or not at all, whenever the power goes."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of either.

    Args:
        path: of the file.
        content: all of it.
        mode: its permissions, from the first byte on; None for those that new files have.
    """
    part = path.with_name(path.name + ".part")
    try:
        if mode is not None:
            # What a killed process left may be readable by others.
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
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
