"""What a person may choose about reading."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Choices that some layouts know.

    Args:
        normal: keep cases that are known to show no lesion.
        unlabelled: keep images without a mask, for which others are a problem.
    """

    normal: bool = True
    unlabelled: bool = False
