"""The handshake: how a site introduces itself in a session, with what all must have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from canal.errors import RefusalError, ReleaseError
from canal.federation.contract import member
from canal.release.mechanism import digest
from canal.release.registry import ReleaseKind, kind_of

if TYPE_CHECKING:
    from canal.federation.cohort import Cohort
    from canal.federation.identity import Identity
    from canal.federation.journal import Journal
    from canal.federation.settings import SiteSettings


def asked_kind(head: Mapping[str, Any]) -> ReleaseKind:
    """What kind of release a session is begun for."""
    try:
        return kind_of(head.get("release"))
    except ReleaseError as error:
        raise RefusalError(str(error)) from error


def asked_as(head: Mapping[str, Any]) -> list[Any]:
    """For what a session is to be begun; a handshake that is repeated says the same."""
    kind = asked_kind(head)
    return [kind.name, head["trust"], bool(head.get("research"))]


def begun_as(member: Mapping[str, Any]) -> list[Any]:
    """For what a session was begun."""
    return [member[name] for name in ("release", "trust", "research")]


@dataclass(frozen=True)
class Introduction:
    """A site's entry of the roster, and the facts that all sites must have in common.

    Args:
        settings: what it is and allows.
        identity: by which the others know it.
        cohort: what it has.
    """

    settings: SiteSettings
    identity: Identity
    cohort: Cohort

    def is_due(self, head: Mapping[str, Any], journal: Journal) -> bool:
        """Once: some signatures are random, and contracts hold them. But a site may change before.

        Args:
            head: of the message.
            journal: of the session.
        """
        known = journal.member
        if known is None:
            return True
        if journal.agreed is not None or journal.finished is not None:
            return False
        if known["certificate"] != self.identity.certificate.decode():
            return True
        if begun_as(known) != asked_as(head):
            return False  # refused: this session was begun otherwise
        here = asked_kind(head).introduce(self.cohort, known)
        return any(known[name] != fact for name, fact in here.items())

    def made(self, head: Mapping[str, Any], journal: Journal) -> dict[str, Any]:
        """What the site shows of itself.

        Args:
            head: of the message.
            journal: of the session.
        """
        if head["trust"] not in self.settings.trust:
            raise RefusalError(
                f"this site takes part in {' or '.join(self.settings.trust)}, not in "
                f"{head['trust']!r}"
            )
        kind, name = asked_kind(head), self.settings.name
        shown = {
            "release": kind.name,
            "trust": head["trust"],
            "research": bool(head.get("research")),
            **kind.introduce(self.cohort, head),
            **member(name, str(head["session"]), journal.keys().public, self.identity),
        }
        if head["trust"] == "trusted":
            shown["claim"] = self._claim(head, journal)
        return shown

    def _claim(self, head: Mapping[str, Any], journal: Journal) -> list[str]:
        """What tells one claim from another, and nothing of it without this site's secret."""
        claim: list[str] = asked_kind(head).claim(self.cohort, head)
        if head.get("research") and self.settings.research:
            return claim
        return [self.settings.name, journal.secret().key(b"claim", digest(claim)).hex()]
