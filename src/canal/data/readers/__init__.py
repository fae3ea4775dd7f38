"""Readers of raw downloads; `read` recognises the layout by itself.

One layout a file. A reader is a module with `LAYOUT`, its name; `recognises(root)`, a look at the
folder; and `read(root, options)`, which lists cases and problems without decoding anything.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from canal.data.case import DataSet
from canal.data.readers import busi, cvc_clinicdb, datalist, images, isic2018, msd, pairs
from canal.data.readers.options import Options
from canal.errors import DataError

# The most particular first: `pairs` would take several of the others.
READERS: tuple[ModuleType, ...] = (datalist, msd, isic2018, busi, cvc_clinicdb, pairs)


def read(path: Path | str, *, normal: bool = True, unlabelled: bool = False) -> DataSet:
    """List the cases of a folder as it was downloaded, or of a MONAI datalist.

    Args:
        path: the folder (or one folder that holds only it), or a `.json` datalist.
        normal: keep cases whose layout says that there is no lesion in them (BUSI's `normal`).
        unlabelled: keep images without a mask, and take a folder that holds nothing but images.
    """
    root = Path(path)
    if not root.exists():
        raise DataError(f"{root} does not exist; give the folder of a data set")
    options = Options(normal=normal, unlabelled=unlabelled)
    for candidate in _candidates(root):
        for reader in (*READERS, images) if unlabelled else READERS:
            if reader.recognises(candidate):
                found: DataSet = reader.read(candidate, options)
                return found
    raise DataError(
        f"no data set was recognised in {root}; known are "
        + ", ".join(reader.LAYOUT for reader in READERS)
        + "; or put images into images/ and masks of the same names into masks/"
    )


def _candidates(root: Path) -> list[Path]:
    """The path itself, and what it wraps when it holds a single folder."""
    found = [root]
    while found[-1].is_dir():
        inside = [child for child in found[-1].iterdir() if not child.name.startswith(".")]
        if len(inside) != 1 or not inside[0].is_dir() or len(found) > 4:
            break
        found.append(inside[0])
    return found
