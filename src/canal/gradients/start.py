"""Where rounds begin, and that they begin there again when they were stopped; all of it public."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from canal.data.overlap import Contents
from canal.errors import InvalidValueError
from canal.files import replace_file
from canal.gradients.basis import read_basis, write_basis
from canal.gradients.patients import CHUNK
from canal.gradients.public import Public
from canal.gradients.update import UpdateSettings
from canal.release.manifest import Manifest
from canal.release.mechanism import digest
from canal.release.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor


# How often each public image is looked at, differently augmented each time.
LOOKS = 8
# What nobody needs, and no reader of a manifest has to wait for.
_MOST_CHUNK, _MOST_LOOKS = 4096, 64


@dataclass(frozen=True)
class Measured:
    """What public numbers were measured with; all of it public, so that anyone can do it again.

    Args:
        initialisation: digest of the whole network.
        images: digest of the recipient's images.
        adapter: which parameters, as plain values.
        allocation: how noise is to be spread.
        directions: of the basis, at most.
        power: by which they are scaled.
        quantile: of the norms, at which patients are clipped.
        views: of an image in a round; 0 for the image as it is.
        chunk: images a pass.
        looks: at every image, each varied another way.
    """

    initialisation: str
    images: str
    adapter: dict[str, Any]
    allocation: str
    directions: int
    power: float
    quantile: float
    views: int
    chunk: int
    looks: int = LOOKS

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise InvalidValueError(f"quantile = {self.quantile!r} must be above 0, and at most 1")
        for name, most in (("chunk", _MOST_CHUNK), ("looks", _MOST_LOOKS)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidValueError(
                    f"{name} = {value!r} must be a whole number from 1 to {most}"
                )

    @property
    def digest(self) -> str:
        """SHA-256 of everything."""
        return digest(astuple(self)).hex()

    def to_json(self) -> dict[str, Any]:
        """What a manifest does not say anyway, as plain values."""
        return {name: getattr(self, name) for name in _SAID}

    @classmethod
    def of(cls, manifest: Manifest) -> Measured:
        """What a manifest says that its public numbers were measured with.

        An older one says less; then this is what nobody had to ask for, of images that it does not
        name.
        """
        plan, public = manifest.plan, manifest.statistics
        said = {"images": "", "quantile": 0.5, "chunk": CHUNK, "directions": plan["directions"]}
        return cls(
            initialisation=str(manifest.participants["initialisation"]),
            adapter=plan["adapter"],
            allocation=plan["allocation"],
            power=public["update"]["power"],
            views=manifest.participants["views"],
            **said | public.get("measured", {}),
        )


_SAID = ("images", "directions", "quantile", "chunk", "looks")


@dataclass(frozen=True)
class Start:
    """Where rounds begin; all of it public.

    Args:
        values: of the adapter's parameters, `[d]`.
        initialisation: digest of the whole network.
        public: scales and bounds.
        update: how the next network follows from a sum.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        measured: what the public numbers were measured with, where that is known.
        asked: digests of the recipient's images that they were measured on; None if unknown.
        trained_on: digests of what the initialisation was trained on; None if unknown.
    """

    values: Tensor
    initialisation: str
    public: Public
    update: UpdateSettings
    views: int = 1
    measured: Measured | None = None
    asked: Contents | None = None
    trained_on: Contents | None = None


def settled(workspace: Workspace, start: Start) -> Start:
    """The start of an earlier run in this place that measured the same; else this one, kept.

    Measured again with other threads or on another machine, public numbers differ in their last
    bits, and a release that was paid for could not be finished.
    """
    if start.measured is None:
        return start
    measured = start.measured.digest
    kept = found_in(workspace, measured, start.public.channels)
    if kept is None:
        path = _place(workspace, measured)
        workspace.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if start.public.basis is not None:
            write_basis(path.parent, start.public.basis)
        replace_file(path, json.dumps(start.public.to_json()).encode())
        kept = found_in(workspace, measured, start.public.channels)
    return start if kept is None else replace(start, public=kept)


def found_in(workspace: Workspace, measured: str, channels: NDArray[np.int64]) -> Public | None:
    """What an earlier run in this place measured, if it did.

    Args:
        workspace: of the release.
        measured: digest of all that it was measured with.
        channels: of every parameter.
    """
    path = _place(workspace, measured)
    if not path.is_file():
        return None
    values = json.loads(path.read_bytes())
    basis = read_basis(path.parent) if values["basis"] else None
    return Public.from_json(values, channels, basis)


def _place(workspace: Workspace, measured: str) -> Path:
    return workspace.private / "public" / measured[:16] / "public.json"
