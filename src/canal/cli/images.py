"""Images of sites and of the recipient, as the shared network wants them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from canal.cli.network import load_part, refuse_cohorts, refuse_overlap
from canal.learning.settings import DataSettings

if TYPE_CHECKING:
    from canal.data.arrays import Arrays


class Images:
    """Images as the shared network wants them."""

    def __init__(
        self, init: Path, *, keep_healthy: bool = True, accept: Collection[str] = ()
    ) -> None:
        from canal.learning.networks import UNetArchitecture
        from canal.learning.teacher import load_initialisation

        self.init, self.keep_healthy, self.accept = init, keep_healthy, tuple(accept)
        _, self.made = load_initialisation(init)
        self.architecture = UNetArchitecture.from_json(self.made.architecture)

    def load(
        self, folder: Path, split: Path | None, part: str, *, unlabelled: bool = False
    ) -> Arrays:
        """A folder, or a part of it."""
        from canal.learning.teacher import check_fit

        channels = self.architecture.in_channels
        known = DataSettings(self.made.size[0], channels, self.keep_healthy, self.accept)
        arrays = load_part(folder, split, part, known, unlabelled=unlabelled)
        check_fit(self.architecture, self.made.size, arrays, str(self.init))
        return arrays

    def public(
        self, data: Sequence[Path], split: Path | None, queries: Path | None, recipient: str
    ) -> Arrays:
        """The recipient's images: a folder of its own, or its part of the split."""
        from canal.errors import InvalidValueError

        private = [folder.resolve() for folder in data]
        shared = queries is None or queries.resolve() in private
        if shared and split is not None:
            refuse_cohorts(split, recipient)
            return self.load(data[0], split, recipient, unlabelled=True)
        if queries is None or shared:
            raise InvalidValueError(
                "scales and bounds are measured on images of the recipient's own; give their "
                "folder with --queries, or a split that names them"
            )
        for folder in data:
            refuse_overlap(queries, folder, "--queries")
        return self.load(queries, None, recipient, unlabelled=True)


def sites_of(data: Sequence[Path], split: Path | None, cohort: Sequence[str]) -> dict[str, Path]:
    """The folder of every site, by the name of its cohort."""
    from itertools import permutations

    from canal.data.split import Split
    from canal.errors import InvalidValueError

    if split is None:
        names = cohort or [folder.resolve().name for folder in data]
        if not len({folder.resolve() for folder in data}) == len(set(names)) == len(data):
            raise InvalidValueError(
                "without a split every site has a folder and a name of its own; give as many "
                "--cohort as --data, or none"
            )
        for one, other in permutations(data, 2):
            if one.resolve().is_relative_to(other.resolve()):
                raise InvalidValueError(
                    f"{one} lies in {other}: its patients would be at two sites, and pay for one; "
                    "give every site a folder of its own"
                )
        return dict(zip(names, data, strict=True))
    if len(data) > 1:
        raise InvalidValueError("a split divides one folder among the sites; give one --data")
    known = Split.read(split).cohorts
    for name in cohort:
        if name not in known:
            raise InvalidValueError(
                f"{name!r} is no cohort of {split}; there are {', '.join(known)}"
            )
    return dict.fromkeys(cohort or known, data[0])
