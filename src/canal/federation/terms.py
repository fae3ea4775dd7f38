"""Terms: what all sites and the aggregator agree on before a release, roster included.

A roster names every site's public key for this session, signed by an identity that the others know
beforehand. A site takes no part in a release whose roster it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from canal.errors import RefusalError, ReleaseError
from canal.features.mechanism import FeatureSpec
from canal.features.plan import check_plan
from canal.features.queries import BATCH
from canal.features.store import FEATURES
from canal.federation.identity import Identity, fingerprint, verify
from canal.federation.masks import Keys
from canal.federation.settings import SiteSettings
from canal.gradients.mechanism import GradientSpec
from canal.gradients.plan import ADAPTERS
from canal.release.mechanism import SECRET, digest
from canal.release.plan import check_cohorts


@dataclass(frozen=True)
class Terms:
    """Of one session.

    Args:
        session: its name.
        key: under which every site's ledger is charged.
        agreement: what the release will be.
        roster: by name, every site's public key, certificate and signature.
        block: how many queries a message answers; 0 where nothing is asked about queries.
        images: SHA-256 of every query's image alone, in order; features depend on nothing else.
    """

    session: str
    key: str
    agreement: FeatureSpec | GradientSpec
    roster: Mapping[str, Mapping[str, str]]
    block: int = 0
    images: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Of all of it, in hex."""
        return digest(self.to_json()).hex()

    @property
    def kind(self) -> str:
        """Of release."""
        return FEATURES if isinstance(self.agreement, FeatureSpec) else ADAPTERS

    @property
    def features(self) -> FeatureSpec:
        """The agreement of a release of features.

        Raises:
            RefusalError: it is of adapters.
        """
        if not isinstance(self.agreement, FeatureSpec):
            raise RefusalError("this session teaches adapters; nothing is asked about queries")
        return self.agreement

    @property
    def adapters(self) -> GradientSpec:
        """The agreement of a release of adapters.

        Raises:
            RefusalError: it is of features.
        """
        if not isinstance(self.agreement, GradientSpec):
            raise RefusalError("this session is about queries; no adapter is taught in it")
        return self.agreement

    @property
    def public_keys(self) -> dict[str, bytes]:
        """Of all sites, by name."""
        return {name: bytes.fromhex(entry["public"]) for name, entry in self.roster.items()}

    @property
    def seed(self) -> int | None:
        """Of a research run; None where noise comes from a secret."""
        if self.agreement.noise == SECRET:
            return None
        word, _, number = self.agreement.noise.partition(" ")
        if word != "seed" or not number.isdecimal():
            raise RefusalError(f"noise of the kind {self.agreement.noise!r} is unknown")
        return int(number)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "kind": self.kind,
            "session": self.session,
            "key": self.key,
            "agreement": self.agreement.to_json(),
            "roster": {name: dict(entry) for name, entry in self.roster.items()},
            "block": self.block,
            "images": list(self.images),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Terms:
        """The reverse of `to_json`.

        Raises:
            RefusalError: these are no terms.
        """
        try:
            agreed, kind = values["agreement"], values["kind"]
            if kind not in (FEATURES, ADAPTERS):
                raise ValueError(f"a release of {kind!r}")
            return cls(
                str(values["session"]),
                str(values["key"]),
                FeatureSpec.from_json(agreed)
                if kind == FEATURES
                else GradientSpec.from_json(agreed),
                {str(name): dict(entry) for name, entry in values["roster"].items()},
                int(values["block"]),
                tuple(str(image) for image in values["images"]),
            )
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise RefusalError(f"these terms cannot be understood: {error!r}") from error

    def check(self, settings: SiteSettings, keys: Keys, known: Mapping[str, str]) -> None:
        """Refuse terms that a site does not take part in.

        Args:
            settings: of the site.
            keys: its own, for this session.
            known: fingerprints of all sites that were agreed on out of band.
        """
        plan = self.agreement.plan
        try:
            if isinstance(self.agreement, FeatureSpec):
                check_plan(self.agreement.plan, self.agreement.cohorts)
            else:
                check_cohorts(self.agreement.cohorts, self.agreement.plan.sites)
        except ReleaseError as error:
            raise RefusalError(str(error)) from error
        if isinstance(self.agreement, FeatureSpec):
            self._check_queries(self.agreement)
        elif self.block or self.images:
            raise RefusalError("adapters are taught without any queries")
        if not self.key:
            raise RefusalError("a charge has a key")
        if plan.allocation == "none":
            raise RefusalError("a release without noise protects nobody; this site gives none")
        if self.seed is not None and not settings.research:
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

    def _check_queries(self, agreement: FeatureSpec) -> None:
        plan = agreement.plan
        if plan.unit == "image":
            raise RefusalError(
                "sites answer for their patients; take a plan of the unit patient, or the paper's"
            )
        named = {len(agreement.queries), len(self.images), plan.participants.queries}
        if len(named) > 1:
            raise RefusalError(
                f"{len(agreement.queries)} queries are named, {plan.participants.queries} paid for"
            )
        if self.block < BATCH or self.block % BATCH:
            raise RefusalError(f"a block has a multiple of {BATCH} queries")

    def _check_roster(self, name: str, keys: Keys, known: Mapping[str, str]) -> None:
        if set(self.roster) != set(self.agreement.cohorts):
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
