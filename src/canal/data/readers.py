"""Readers of raw downloads; `read` recognises the layout by itself.

A reader is one function: it looks at a folder and lists its cases and problems, without decoding
anything, or returns None where the folder has another layout. `LAYOUTS` is the table of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from canal.data import patients
from canal.data.case import (
    IMAGE_SUFFIXES,
    Case,
    DataSet,
    Options,
    Problem,
    folder_named,
    is_volume,
    stem,
)
from canal.data.datalists import datalist, decathlon
from canal.errors import DataError

_BUSI_CLASSES = ("benign", "malignant", "normal")
_BUSI_MASK = re.compile(r"_mask(_\d+)?$")
_NO_SEQUENCES = Problem(
    "metadata.csv",
    "is not there or names no sequences, so that frames of one video would be torn apart",
    "add it with the columns frame_id and sequence_id",
    "missing-sequences",
)
_IMAGES = ("images", "image", "imgs", "img")
_MASKS = ("masks", "mask", "labels", "label", "annotations", "ground truth")
_ENDINGS = ("_mask", "-mask", "_segmentation", "_label", "_seg", "_gt")


def read(path: Path | str, *, keep_healthy: bool = True, unlabelled: bool = False) -> DataSet:
    """List the cases of a folder as it was downloaded, or of a MONAI datalist.

    Args:
        path: the folder (or one folder that holds only it), or a `.json` datalist.
        keep_healthy: keep cases whose layout says that there is no lesion in them (BUSI's
            `normal`).
        unlabelled: keep images without a mask, and take a folder that holds nothing but images.
    """
    root = Path(path)
    if not root.exists():
        raise DataError(f"{root} does not exist; give the folder of a data set")
    options = Options(keep_healthy, unlabelled)
    readers = LAYOUTS | ({"images alone": images_alone} if unlabelled else {})
    for candidate in _candidates(root):
        for layout, reader in readers.items():
            found = reader(candidate, options)
            if found is not None:
                return replace(found, layout=layout)
    raise DataError(
        f"no data set was recognised in {root}; known are {', '.join(LAYOUTS)}; or put images into "
        "images/ and masks of the same names into masks/"
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


def isic2018(root: Path, options: Options) -> DataSet | None:
    """ISIC 2018 Task 1: `…_Input/ISIC_*.jpg` beside `…_GroundTruth/ISIC_*_segmentation.png`.

    Training, validation and test folders alike.
    """
    inside = sorted(root.iterdir()) if root.is_dir() else []
    challenge = [child for child in inside if child.is_dir() and child.name.startswith("ISIC")]
    inputs = [folder for folder in challenge if folder.name.endswith("_Input")]
    truths = [folder for folder in challenge if folder.name.endswith("_GroundTruth")]
    if not inputs or not truths:
        return None
    return pair_up(
        root,
        [path for folder in inputs for path in images_in(folder)],
        [path for folder in truths for path in images_in(folder)],
        mask_id=lambda path: path.stem.removesuffix("_segmentation"),
        unlabelled=options.unlabelled,
    )


def busi(root: Path, options: Options) -> DataSet | None:
    """BUSI: `benign/benign (1).png` beside `benign (1)_mask.png`, `…_mask_1.png`; and `normal/`.

    Several masks of one image are several lesions; their union is the truth. The download names no
    patients, so only near-duplicates are kept together.
    """
    folders = {name: folder_named(root, name) for name in _BUSI_CLASSES}
    if sum(folder is not None for folder in folders.values()) < 2:
        return None
    if not options.keep_healthy:
        del folders["normal"]
    files = [path for folder in folders.values() if folder for path in images_in(folder)]
    return pair_up(
        root,
        [path for path in files if not _BUSI_MASK.search(path.stem)],
        [path for path in files if _BUSI_MASK.search(path.stem)],
        mask_id=lambda path: _BUSI_MASK.sub("", path.stem),
        unlabelled=options.unlabelled,
    )


def cvc_clinicdb(root: Path, options: Options) -> DataSet | None:
    """CVC-ClinicDB: `Original/` beside `Ground Truth/`, and `metadata.csv` from frame to sequence.

    Frames are PNG, TIF, or at the top.
    """
    places = [place for name in ("PNG", "TIF") if (place := folder_named(root, name))]
    for place in (*places, root):
        frames, truths = (folder_named(place, name) for name in ("Original", "Ground Truth"))
        if frames and truths:
            break
    else:
        return None
    # Someone may point to `PNG/` itself, beside which the sequences are.
    listed = next((p for p in (root, root.parent) if (p / "metadata.csv").is_file()), root)
    records = patients.read_records(listed / "metadata.csv")
    data = pair_up(
        root,
        images_in(frames),
        images_in(truths),
        records=records,
        unlabelled=options.unlabelled,
    )
    return data if records else replace(data, problems=(*data.problems, _NO_SEQUENCES))


def images_and_masks(root: Path, options: Options) -> DataSet | None:
    """Any `images/` beside `masks/`: Kvasir-SEG, ETIS, a hospital's own; or one pair a hospital.

    A `metadata.csv` beside them may give the patient or sequence of every image. With several
    hospitals, each id starts with its folder.
    """
    pairs = {root: _pair(root)}
    if pairs[root] is None and root.is_dir():
        pairs = {child: _pair(child) for child in sorted(root.iterdir()) if child.is_dir()}
    folders = {place: pair for place, pair in pairs.items() if pair is not None}
    if not folders:
        return None
    several = len(folders) > 1
    records = patients.read_records(root / "metadata.csv")
    for place in folders:
        if place != root:
            records |= patients.read_records(place / "metadata.csv", place.name if several else "")

    def name(path: Path) -> str:
        place = next(p for p in folders if p in path.parents)
        folder = next(f for f in folders[place] if f in path.parents)
        inner = path.relative_to(folder).with_suffix("").as_posix()
        return f"{place.name}/{inner}" if several else inner

    images = [path for inputs, _ in folders.values() for path in images_in(inputs)]
    names = {name(path) for path in images}

    def mask_name(path: Path) -> str:
        found = name(path)
        if found in names:
            return found
        return next((found.removesuffix(end) for end in _ENDINGS if found.endswith(end)), found)

    return pair_up(
        root,
        images,
        [path for _, truths in folders.values() for path in images_in(truths)],
        image_id=name,
        mask_id=mask_name,
        records=records,
        site=lambda case: case.split("/")[0] if several else "",
        unlabelled=options.unlabelled,
    )


def _pair(place: Path) -> tuple[Path, Path] | None:
    images, masks = folder_named(place, *_IMAGES), folder_named(place, *_MASKS)
    return (images, masks) if images and masks else None


def images_alone(root: Path, _: Options) -> DataSet | None:
    """A folder of images and nothing else: queries without labels, or pictures to segment."""
    files = (volumes_in(root) or images_in(root)) if root.is_dir() else []
    if not files:
        return None
    records = patients.read_records(root / "metadata.csv")
    cases = []
    for path in files:
        where = path.relative_to(root)
        name = (where.parent / stem(path.name)).as_posix()
        cases.append(Case(name, (path,), (), patients.by_record(name, records)))
    problems = patients.left_out(cases, records, {""} if records else set())
    dims = 3 if is_volume(files[0]) else 2
    return DataSet("", root, tuple(sorted(cases)), tuple(problems), spatial_dims=dims)


# The most particular first: `images_and_masks` would take several of the others.
LAYOUTS: dict[str, Callable[[Path, Options], DataSet | None]] = {
    "MONAI datalist": datalist,
    "MSD / nnU-Net raw": decathlon,
    "ISIC 2018 Task 1": isic2018,
    "BUSI": busi,
    "CVC-ClinicDB": cvc_clinicdb,
    "images/ and masks/": images_and_masks,
}


def images_in(folder: Path) -> list[Path]:
    """Every image below a folder, in order of name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    )


def volumes_in(folder: Path) -> list[Path]:
    """Every volume below a folder, in order of name."""
    return sorted(path for path in folder.rglob("*") if is_volume(path))


def pair_up(
    root: Path,
    images: Iterable[Path],
    masks: Iterable[Path],
    *,
    image_id: Callable[[Path], str] = lambda path: path.stem,
    mask_id: Callable[[Path], str] = lambda path: path.stem,
    records: Mapping[str, str] | None = None,
    site: Callable[[str], str] = lambda _: "",
    unlabelled: bool = False,
) -> DataSet:
    """Match images with masks by id; whatever is left over on either side is a problem.

    Args:
        root: of the data set.
        images: files.
        masks: files; several of one id are one truth.
        image_id: the id of an image.
        mask_id: the id of the image that a mask belongs to.
        records: the patient of an id, where records name one.
        site: the hospital of an id.
        unlabelled: keep images without a mask; no problem then.
    """
    records = records or {}
    by_id: dict[str, list[Path]] = {}
    for path in masks:
        by_id.setdefault(mask_id(path), []).append(path)
    cases, problems, seen = [], [], dict[str, Path]()
    for path in images:
        name = image_id(path)
        where = path.relative_to(root).as_posix()
        if name in seen:
            twin = seen[name].relative_to(root).as_posix()
            what = f"has the same id as {twin}, and would take its place"
            problems.append(Problem(where, what, "remove one of the two"))
            continue
        seen[name] = path
        if name not in by_id and not unlabelled:
            remedy = "add the mask, or take the image out of the folder"
            problems.append(Problem(where, "has no mask", remedy, "missing-mask"))
            continue
        truth = tuple(by_id.get(name, ()))
        cases.append(Case(name, (path,), truth, patients.by_record(name, records), site(name)))
    problems += patients.left_out(cases, records, {site(name) for name in records})
    problems += [
        Problem(
            path.relative_to(root).as_posix(),
            "is a mask without an image",
            "add the image, or take the mask out of the folder",
            "missing-image",
        )
        for name in by_id.keys() - seen.keys()
        for path in by_id[name]
    ]
    return DataSet("", root, tuple(sorted(cases)), tuple(sorted(problems, key=str)))
