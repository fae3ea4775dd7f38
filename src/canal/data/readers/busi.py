"""BUSI: `benign/benign (1).png` beside `benign (1)_mask.png`, `…_mask_1.png`; and `normal/`.

Several masks of one image are several lesions; their union is the truth. The download names no
patients, so groups come from near-duplicates alone.
"""

from __future__ import annotations

import re
from pathlib import Path

from canal.data.case import DataSet
from canal.data.readers.listing import folder_named, images_in, pair_up
from canal.data.readers.options import Options

LAYOUT = "BUSI"
_CLASSES = ("benign", "malignant", "normal")
_MASK = re.compile(r"_mask(_\d+)?$")


def recognises(root: Path) -> bool:
    """Whether the class folders of the download are here."""
    return sum(folder_named(root, name) is not None for name in _CLASSES) >= 2


def read(root: Path, options: Options) -> DataSet:
    """List the scans; those without a lesion only if asked for."""
    wanted = _CLASSES if options.normal else _CLASSES[:2]
    folders = [folder for name in wanted if (folder := folder_named(root, name))]
    files = [path for folder in folders for path in images_in(folder)]
    return pair_up(
        LAYOUT,
        root,
        [path for path in files if not _MASK.search(path.stem)],
        [path for path in files if _MASK.search(path.stem)],
        image_id=lambda path: path.stem,
        mask_id=lambda path: _MASK.sub("", path.stem),
        unlabelled=options.unlabelled,
    )
