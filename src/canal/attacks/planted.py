"""Canaries: patients whom we put into a cohort to see whether they are found again.

An attack on ordinary patients averages over many who leave hardly a trace, and says little about
those whom it would find (Aerni et al. 2024). Canaries are real images that are made unlike all
others, so that whoever trains on them must learn each by heart.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from canal.data.arrays import Arrays
from canal.errors import InvalidValueError

Kind = Literal["scrambled", "inverted", "negative", "ordinary"]
KINDS: dict[Kind, str] = {
    "scrambled": "a mask of squares drawn at random, that has nothing to do with the image",
    "inverted": "a mask with inside and outside exchanged",
    "negative": "a negative of the image, with a scrambled mask",
    "ordinary": "nothing is changed",
}
# Squares a side of a scrambled mask.
_SQUARES = 4


def plant(arrays: Arrays, kind: Kind, count: int, *, images: int = 1, seed: int = 0) -> Arrays:
    """Canaries from images of people who are in no cohort: one patient each.

    Args:
        arrays: labelled; the first image of each person is taken.
        kind: what is done to it.
        count: how many patients.
        images: of each canary; the same image, each time with other grain.
        seed: of masks and grain.
    """
    if kind not in KINDS:
        raise InvalidValueError(f"canary = {kind!r} is unknown; choose one of {', '.join(KINDS)}")
    if count < 2 or images < 1:
        raise InvalidValueError(
            f"canaries = {count!r} must be at least 2, images = {images!r} of each at least 1"
        )
    first: dict[str, int] = {}
    for row, name in enumerate(arrays.ids):
        if arrays.labelled[row]:
            first.setdefault(arrays.patients[name], row)
    if len(first) < count:
        raise InvalidValueError(
            f"canaries = {count} are made of as many people, and there are {len(first)}; ask for "
            "fewer, or give more others"
        )
    rows = list(first.values())[:count]
    rng = np.random.default_rng([seed, count])
    pixels, masks = np.array(arrays.images[rows]), np.array(arrays.masks[rows])
    if kind == "inverted":
        masks = 1 - masks
    if kind in ("scrambled", "negative"):
        masks = np.stack([_squares(mask.shape[1:], rng)[None] for mask in masks])
    if kind == "negative":
        pixels = 255 - pixels
    pixels, masks = np.repeat(pixels, images, axis=0), np.repeat(masks, images, axis=0)
    if images > 1:
        grain = rng.integers(-12, 13, pixels.shape)
        pixels = np.clip(pixels.astype(np.int64) + grain, 0, 255).astype(np.uint8)
    names = [(number, view) for number in range(count) for view in range(images)]
    ids = tuple(f"canary {number} image {view}" for number, view in names)
    content = hashlib.sha256(f"{arrays.digest} {kind} {images} {seed}".encode())
    content.update(pixels.tobytes() + masks.tobytes())
    groups = {each: f"canary {number}" for each, (number, _) in zip(ids, names, strict=True)}
    return Arrays(ids, pixels, masks, content.hexdigest(), patients=groups)


def _squares(size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Squares (or cubes), each inside or outside by the toss of a coin; never all of one kind."""
    coins = np.zeros((_SQUARES,) * len(size), np.uint8)
    while coins.min() == coins.max():
        coins = rng.integers(0, 2, coins.shape, dtype=np.uint8)
    where = np.ix_(*(np.arange(side) * _SQUARES // side for side in size))
    found: NDArray[np.uint8] = coins[where]
    return found
