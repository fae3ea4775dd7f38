"""How a site introduces itself in a session: what all must have in common, and a signed key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from canal.errors import RefusalError
from canal.features.store import FEATURES
from canal.federation.terms import member
from canal.gradients.plan import ADAPTERS
from canal.release.mechanism import digest

if TYPE_CHECKING:
    from canal.federation.cohort import Cohort
    from canal.federation.identity import Identity
    from canal.federation.journal import Journal
    from canal.federation.settings import SiteSettings


def kind_of(head: Mapping[str, Any]) -> str:
    """What kind of release a session is begun for."""
    kind = str(head.get("release", FEATURES))
    if kind not in (FEATURES, ADAPTERS):
        raise RefusalError(f"a release of {kind!r} is unknown here")
    return kind


@dataclass(frozen=True)
class Introduction:
    """Of one site.

    Args:
        settings: what it is and allows.
        identity: by which the others know it.
        cohort: what it has.
    """

    settings: SiteSettings
    identity: Identity
    cohort: Cohort

    def is_due(self, journal: Journal) -> bool:
        """Once: some signatures are random, and terms hold them. But a site may change before."""
        known = journal.member
        if known is None:
            return True
        if journal.agreed is not None or journal.finished is not None:
            return False
        if known["certificate"] != self.identity.certificate.decode():
            return True
        here = known["initialisation"]
        if known["release"] == FEATURES:
            here = self.cohort.ensemble.initialisation
        return bool(known["initialisation"] != here)

    def made(self, head: Mapping[str, Any], journal: Journal) -> dict[str, Any]:
        """What the site shows of itself.

        Args:
            head: of the question.
            journal: of the session.
        """
        if head["trust"] not in self.settings.trust:
            raise RefusalError(
                f"this site takes part in {' or '.join(self.settings.trust)}, not in "
                f"{head['trust']!r}"
            )
        kind, name = kind_of(head), self.settings.name
        shown = {
            "release": kind,
            "trust": head["trust"],
            "research": bool(head.get("research")),
            **(self._network(head) if kind == ADAPTERS else self._teacher()),
            **member(name, str(head["session"]), journal.keys().public, self.identity),
        }
        if head["trust"] == "trusted":
            shown["claim"] = self._claim(head, journal)
        return shown

    def _teacher(self) -> dict[str, Any]:
        ensemble = self.cohort.ensemble
        return {
            "initialisation": ensemble.initialisation,
            "trained_initialisation": ensemble.trained_initialisation,
            "layer": self.cohort.teacher.tap.layer,
        }

    def _network(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Of rounds: the initialisation that came."""
        name = str(head["initialisation"])
        self.cohort.initialisation(name)
        return {"initialisation": name}

    def _claim(self, head: Mapping[str, Any], journal: Journal) -> list[str]:
        """What tells one claim from another, and nothing of it without this site's secret."""
        if kind_of(head) == FEATURES:
            claim = self.cohort.teacher.claim
        else:
            views = int(head.get("views", 1))
            claim = self.cohort.patients(str(head["initialisation"]), views).claim
        if head.get("research") and self.settings.research:
            return claim
        return [self.settings.name, journal.secret().key(b"claim", digest(claim)).hex()]
