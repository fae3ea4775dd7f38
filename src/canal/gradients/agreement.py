"""The agreement: all that is public about an adapter release before it is made, and binds all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from canal.gradients.patients import check_views
from canal.gradients.plan import AdapterPlan
from canal.gradients.update import UpdateSettings
from canal.release.agreement import Binding


@dataclass(frozen=True)
class AdapterAgreement(Binding):
    """What a release will be.

    Args:
        plan: what is asked for.
        cohorts: of the sites, in the order of the release.
        initialisation: digest of the weights that the rounds start from.
        public: scales and bounds, as measured on the recipient's images.
        update: how the next network follows from a sum.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        noise: `secret`, or the seed of a research run.
    """

    plan: AdapterPlan
    cohorts: tuple[str, ...]
    initialisation: str
    public: dict[str, Any]
    update: UpdateSettings
    views: int
    noise: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "plan": self.plan.to_json(),
            "cohorts": list(self.cohorts),
            "initialisation": self.initialisation,
            "public": self.public,
            "update": self.update.to_json(),
            "views": self.views,
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> AdapterAgreement:
        """The reverse of `to_json`."""
        check_views(values["views"])
        return cls(
            AdapterPlan.from_json(values["plan"]),
            tuple(str(name) for name in values["cohorts"]),
            str(values["initialisation"]),
            dict(values["public"]),
            UpdateSettings.from_json(values["update"]),
            values["views"],
            str(values["noise"]),
        )
