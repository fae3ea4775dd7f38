"""The contract: what all sites and the aggregator agree on before a release, roster included.

A roster names every site's public key for this session, signed by an identity that the others know
beforehand. A site takes no part in a release whose roster it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from canal.errors import InvalidValueError, RefusalError, ReleaseError
from canal.federation.identity import Identity, fingerprint, verify
from canal.federation.masks import Keys
from canal.federation.settings import SiteSettings
from canal.release.mechanism import ReleaseSpec, digest
from canal.release.registry import kind_of


@dataclass(frozen=True)
class Contract:
    """What one session is about.

    Args:
        session: its name.
        key: under which every site's ledger is charged.
        spec: what the release will be.
        roster: by name, every site's public key, certificate and signature.
    """

    session: str
    key: str
    spec: ReleaseSpec
    roster: Mapping[str, Mapping[str, str]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything, in hex."""
        return digest(self.to_json()).hex()

    @property
    def public_keys(self) -> dict[str, bytes]:
        """Public keys of all sites, by name."""
        return {name: bytes.fromhex(entry["public"]) for name, entry in self.roster.items()}

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "kind": self.spec.kind,
            "session": self.session,
            "key": self.key,
            "spec": self.spec.to_json(),
            "roster": {name: dict(entry) for name, entry in self.roster.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Contract:
        """The reverse of `to_json`.

        Raises:
            RefusalError: this is no contract.
        """
        try:
            return cls(
                str(values["session"]),
                str(values["key"]),
                kind_of(values["kind"]).spec_from_json(values["spec"]),
                {str(name): dict(entry) for name, entry in values["roster"].items()},
            )
        except (LookupError, TypeError, AttributeError, ValueError, ReleaseError) as error:
            raise RefusalError(f"this contract cannot be understood: {error!r}") from error

    def check(self, settings: SiteSettings, keys: Keys, known: Mapping[str, str]) -> None:
        """Refuse a contract that a site does not take part in.

        Args:
            settings: of the site.
            keys: its own, for this session.
            known: fingerprints of all sites that were agreed on out of band.
        """
        plan = self.spec.plan
        try:
            self.spec.check()
            seeded = self.spec.seed is not None
        except (ReleaseError, InvalidValueError) as error:
            raise RefusalError(str(error)) from error
        if not self.key:
            raise RefusalError("a charge has a key")
        if plan.allocation == "none":
            raise RefusalError("a release without noise protects nobody; this site gives none")
        if self.spec.paired:
            raise RefusalError("noise that is drawn in pairs is for experiments in one process")
        if seeded and not settings.research:
            raise RefusalError(
                "seeded noise protects nobody; this site takes no part in research runs "
                "(`research = true` in its site.toml, for public data only)"
            )
        if plan.trust not in settings.trust:
            raise RefusalError(
                f"this site takes part in {' or '.join(settings.trust)}, not in {plan.trust}"
            )
        if plan.trust == "secure-sum" and plan.colluding < settings.colluding:
            raise RefusalError(
                f"this site insists on t = {settings.colluding} colluding sites, and the plan "
                f"allows for {plan.colluding}"
            )
        self._check_roster(settings.name, keys, known)

    def _check_roster(self, name: str, keys: Keys, known: Mapping[str, str]) -> None:
        if set(self.roster) != set(self.spec.cohorts):
            raise RefusalError("the roster is not that of the cohorts")
        for other, entry in self.roster.items():
            certificate = entry["certificate"].encode()
            if known.get(other) != fingerprint(certificate):
                raise RefusalError(
                    f"{other!r} is unknown here, or has another certificate than was agreed on; "
                    "compare fingerprints with that site, by phone say"
                )
            content = introduction(other, self.session, bytes.fromhex(entry["public"]))
            verify(certificate, content, bytes.fromhex(entry["signature"]))
        if self.public_keys.get(name) != keys.public:
            raise RefusalError(f"the roster has another key for {name!r} than its own")


def introduction(name: str, session: str, public: bytes) -> bytes:
    """What a site signs to say that a key is its own, in this session."""
    # No name begins with a zero, so nothing else that this key signs does.
    return b"\0canal federation key" + digest([session, name, public.hex()])


def member(name: str, session: str, public: bytes, identity: Identity) -> dict[str, str]:
    """A site's entry of a roster."""
    return {
        "public": public.hex(),
        "certificate": identity.certificate.decode(),
        "signature": identity.sign(introduction(name, session, public)).hex(),
    }
