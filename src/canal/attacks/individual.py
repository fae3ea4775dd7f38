"""Figures that have no noise: individual privacy losses, sizes of cohorts, names of patients.

An audit at a hospital computes them, and no epsilon covers them. So they are in no file that is
meant for others: they are shown to whoever sits at the terminal, and kept in a file of their own
where the hospital asks for it. The report refuses such a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from canal.errors import InvalidValueError
from canal.files import replace_file
from canal.release.manifest import MANIFEST

FAMILY = "canal-individual/"
FORMAT = f"{FAMILY}1"
STAYS = "These figures are about patients and have no noise: they must not leave the hospital."
LOOKED_AT = "looked at with what a site keeps; the figures stay with those who hold it"


def check_place(path: Path, release: Path, out: Path | None = None) -> None:
    """Refuse a file where the public might find it: in a release, or in the folder of a run.

    Args:
        path: of the file for the hospital alone.
        release: folder of the release that was looked at.
        out: of the file for the public, if there is one.
    """
    place, published = path.resolve(), release.resolve()
    if path.is_dir() or not place.parent.is_dir():
        raise InvalidValueError(f"--private {path} must be a file in a folder that exists")
    if path.is_symlink():
        raise InvalidValueError(f"--private {path} is a link; give a file of its own")
    run = [published.parent] if out is None else [published.parent, out.resolve().parent]
    for folder in place.parents:
        if folder.name.endswith(".private") and published not in place.parents:
            return
        if folder in run or (folder / MANIFEST).exists():
            raise InvalidValueError(
                f"--private {path} would lie in {folder}, which holds what others may read; give a "
                "place outside of it, or a folder of its own whose name ends with .private"
            )


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found where only its owner can read it."""
    content = {"format": FORMAT, "stays": STAYS} | found
    text = json.dumps(content, indent=1, allow_nan=False)
    replace_file(path, f"{text}\n".encode(), mode=0o600)
