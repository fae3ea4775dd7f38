"""The agreement: all that is public about a release before it is made, and binds everyone in it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from canal.features.plan import Plan
from canal.release.noise import Noise

if TYPE_CHECKING:
    from canal.privacy.randomness import Secret


class Binding(ABC):
    """What an agreement about a release of any kind is good for: it names, and binds noise."""

    plan: Any
    noise: str

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As plain values."""

    @property
    def private(self) -> bool:
        """Whether its noise is to protect anybody."""
        return self.noise == SECRET and self.plan.allocation != "none"

    @cached_property
    def digest(self) -> bytes:
        """Of all of it."""
        return digest(self.to_json())

    def noise_of_site(self, secret: Secret, claim: list[str], paired: bool = False) -> Noise:
        """A site's noise under this agreement: bound to it, and to what the site speaks from.

        Args:
            secret: of the site.
            claim: what determines what the site says; private.
            paired: for the arms of an experiment.
        """
        return Noise(secret, (self.digest, digest(claim)), paired)


@dataclass(frozen=True)
class Agreement(Binding):
    """What a release of features will be.

    Args:
        plan: what is asked for.
        cohorts: of the sites, in the order of the release.
        initialisation: digest of the weights that all teachers started from.
        layer: that is tapped.
        queries: ids and contents (SHA-256) of all queries, in order.
        noise: `secret`, or the seed of a research run.
    """

    plan: Plan
    cohorts: tuple[str, ...]
    initialisation: str
    layer: str
    queries: tuple[tuple[str, str], ...]
    noise: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "plan": self.plan.to_json(),
            "cohorts": list(self.cohorts),
            "initialisation": self.initialisation,
            "layer": self.layer,
            "queries": dict(self.queries),
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Agreement:
        """The reverse of `to_json`."""
        return cls(
            Plan.from_json(values["plan"]),
            tuple(str(name) for name in values["cohorts"]),
            str(values["initialisation"]),
            str(values["layer"]),
            tuple((str(name), str(content)) for name, content in values["queries"].items()),
            str(values["noise"]),
        )


SECRET = "secret"  # noqa: S105  # the word, not one


def written(content: Any) -> bytes:
    """The one way to write plain values down."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def digest(content: Any) -> bytes:
    """SHA-256 of plain values."""
    return hashlib.sha256(written(content)).digest()
