"""Any `images/` beside `masks/`: Kvasir-SEG, ETIS, a hospital's own; or one such pair a hospital.

A `metadata.csv` beside them may give the patient or sequence of every image.
"""

from __future__ import annotations

from pathlib import Path

from canal.data.case import DataSet
from canal.data.readers.listing import folder_named, groups_from_csv, images_in, pair_up
from canal.data.readers.options import Options

LAYOUT = "images/ and masks/"
_IMAGES = ("images", "image", "imgs", "img")
_MASKS = ("masks", "mask", "labels", "label", "annotations", "ground truth")
_ENDINGS = ("_mask", "-mask", "_segmentation", "_label", "_seg", "_gt")


def recognises(root: Path) -> bool:
    """Whether a pair of folders is here, or in each of several hospitals' folders."""
    return bool(_places(root))


def read(root: Path, options: Options) -> DataSet:
    """List every image; with several hospitals, each id starts with its folder."""
    places = _places(root)
    several = len(places) > 1
    folders = {place: _pair(place) for place in places}
    images, masks, groups = [], [], groups_from_csv(root / "metadata.csv")
    for place in places:
        images += images_in(folders[place][0])
        masks += images_in(folders[place][1])
        if place != root:
            own = groups_from_csv(place / "metadata.csv")
            groups |= (
                {f"{place.name}/{name}": f"{place.name} {who}" for name, who in own.items()}
                if several
                else own
            )

    def name(path: Path) -> str:
        place = next(p for p in places if p in path.parents)
        folder = next(f for f in folders[place] if f in path.parents)
        inner = path.relative_to(folder).with_suffix("").as_posix()
        return f"{place.name}/{inner}" if several else inner

    names = {name(path) for path in images}

    def mask_name(path: Path) -> str:
        found = name(path)
        if found in names:
            return found
        return next((found.removesuffix(end) for end in _ENDINGS if found.endswith(end)), found)

    return pair_up(
        LAYOUT,
        root,
        images,
        masks,
        image_id=name,
        mask_id=mask_name,
        groups=groups,
        site=lambda case: case.split("/")[0] if several else "",
        unlabelled=options.unlabelled,
    )


def _pair(place: Path) -> tuple[Path, Path]:
    images, masks = folder_named(place, *_IMAGES), folder_named(place, *_MASKS)
    assert images is not None  # noqa: S101  # _places() looked
    assert masks is not None  # noqa: S101
    return images, masks


def _has_pair(place: Path) -> bool:
    return folder_named(place, *_IMAGES) is not None and folder_named(place, *_MASKS) is not None


def _places(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    if _has_pair(root):
        return [root]
    return sorted(child for child in root.iterdir() if child.is_dir() and _has_pair(child))
