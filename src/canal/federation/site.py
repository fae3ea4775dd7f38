"""A site: holds a teacher, answers an aggregator that it does not trust, and decides for itself.

Whatever is asked, a site

* knows its own terms (`site.toml`), its own ledger and the fingerprints of the other sites; none of
  them can be changed from outside;
* derives every sigma from the plan again, and pays before it reads a private tensor;
* answers about a query once: asked again, it sends the same bytes; asked otherwise, it refuses;
* says nothing about its data beside what it pays for. An error while private data were read is
  reported as such, without a reason; the reason is in the site's own log.

It never runs anything that it was sent: a message is values and arrays.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from canal.errors import CanalError, FederationError
from canal.federation.cohort import Cohort
from canal.federation.contribution import Contribution
from canal.federation.identity import Identity, read_roster
from canal.federation.journal import Journal, sessions
from canal.federation.message import Message
from canal.federation.questions import Asked
from canal.federation.settings import SiteSettings
from canal.federation.terms import Terms, member
from canal.privacy.ledger import Ledger
from canal.release.charges import charges
from canal.release.ensemble import Ensemble, Teacher, load_ensemble
from canal.release.manifest import Manifest
from canal.release.statistics import Statistics
from canal.release.verification import check_statement, same

_SESSION = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger(__name__)


class Site:
    """One hospital.

    Args:
        settings: what it is and allows.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._cohort = Cohort(settings)
        self._asked: dict[str, Asked] = {}

    @classmethod
    def open(cls, folder: Path) -> Site:
        """The site of a folder."""
        return cls(SiteSettings.read(folder))

    @cached_property
    def identity(self) -> Identity:
        """By which the others know this site."""
        known = self.settings
        return Identity.load(known.path(known.certificate), known.path(known.key))

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher; private."""
        (made,) = self._ensemble.teachers
        if made.cohort != self.settings.name:
            raise FederationError(
                f"the teacher is of {made.cohort!r}, and this site is {self.settings.name!r}; "
                "train it with the name of the site"
            )
        return made

    @cached_property
    def _ensemble(self) -> Ensemble:
        return load_ensemble([self.settings.path(self.settings.teacher)])

    def answer(self, request: bytes) -> bytes:
        """Answer any message; never raises, and never in two ways.

        Args:
            request: bytes from outside, of whoever.
        """
        try:
            message = Message.from_bytes(request)
            with self._lock:
                kind = str(message.head.get("kind"))
                if kind not in self._answers:
                    raise FederationError(f"a site is not asked for {kind!r}")
                return self._answers[kind](self, message, request)
        except CanalError as error:
            _log.warning("refused: %s", error)
            return Message({"ok": False, "error": str(error)}).to_bytes()
        except Exception:
            _log.exception("failed")
            return Message({"ok": False, "error": "it failed; its own log says why"}).to_bytes()

    def _initialise(self, message: Message, _: bytes) -> bytes:
        self._cohort.receive(message.head, message.arrays)
        return _yes()

    def _train(self, message: Message, _: bytes) -> bytes:
        return _yes(state=self._cohort.train(str(message.head["initialisation"])))

    def _join(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open():
            known = self._introduction(message, journal)
        return _yes(**known)

    def _introduction(self, message: Message, journal: Journal) -> dict[str, Any]:
        """What this site shows of itself: a signed key; its teacher's digest only if trusted."""
        if message.head["trust"] not in self.settings.trust:
            raise FederationError(
                f"this site takes part in {' or '.join(self.settings.trust)}, not in "
                f"{message.head['trust']!r}"
            )
        ensemble = self._ensemble
        shown = {
            "initialisation": ensemble.initialisation,
            "trained_initialisation": ensemble.trained_initialisation,
            "layer": self.teacher.tap.layer,
            "finished": journal.finished,
        }
        if message.head["trust"] == "trusted":
            shown["claim"] = ensemble.claims[0]
        if journal.finished is None:
            # Signed once: some signatures are random, and terms hold them.
            if journal.member is None:
                public, session = journal.keys().public, str(message.head["session"])
                journal.introduce(member(self.settings.name, session, public, self.identity))
            shown |= journal.member or {}
        return shown

    def _agree(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open():
            terms = Terms.from_json(message.head["terms"])
            asked = self._check(terms, journal)
            if not same(message.head["stated"], asked.flat.to_json()):
                raise FederationError(
                    "the noise that is stated is not what the plan's epsilon needs; this site "
                    "derived other numbers"
                )
            self._pay(terms, asked, journal)
            self._asked[terms.session] = asked
            return _yes(there=asked.queries.there)

    def _check(self, terms: Terms, journal: Journal) -> Asked:
        """Refuse terms that are not this site's, or not those that it agreed to before."""
        agreed = journal.agreed
        if agreed is not None and agreed != terms.to_json():
            raise FederationError("other terms were agreed to in this session; begin a new one")
        if journal.finished is not None:
            raise FederationError("this release is finished here; a new one needs a new session")
        terms.check(self.settings, journal.keys(), self._known)
        ensemble = self._ensemble
        agreement = terms.agreement
        if (agreement.initialisation, agreement.layer) != (
            ensemble.initialisation,
            self.teacher.tap.layer,
        ):
            raise FederationError("the teacher here has another initialisation, or another layer")
        if agreement.plan.trained_initialisation < ensemble.trained_initialisation:
            raise FederationError("the initialisation was trained on images; the plan denies it")
        if not self.settings.again:
            self._refuse_twice(terms, journal)
        return Asked(terms, journal)

    def _refuse_twice(self, terms: Terms, journal: Journal) -> None:
        contents = {content for _, content in terms.agreement.queries}
        for other in sessions(self.settings.sessions):
            agreed = other.agreed
            if other.folder == journal.folder or agreed is None:
                continue
            before = contents & set(agreed["agreement"]["queries"].values())
            if before:
                raise FederationError(
                    f"{len(before)} of these queries were answered in another session; a second "
                    "view of a query is another release, which this site does not give"
                )

    @property
    def _known(self) -> dict[str, str]:
        return read_roster(self.settings.path(self.settings.roster))

    def _pay(self, terms: Terms, asked: Asked, journal: Journal) -> None:
        """Charge this site's own ledger, once, before anything private is read."""
        if not terms.agreement.private:
            journal.agree(terms.to_json())
            return
        ledger = Ledger(self.settings.path(self.settings.ledger), must_exist=True)
        note = f"session {terms.session}"
        new = journal.agreed is None
        earlier = [row for row in ledger.rows() if row.key == terms.key]
        if earlier and (new or any(row.note != note for row in earlier)):
            raise FederationError("this key was charged before; a new release needs a new one")
        due = charges(asked.flat, terms.agreement.cohorts)
        mine = [charge for charge in due if charge.cohort == self.settings.name]
        journal.agree(terms.to_json())
        try:
            ledger.reserve(terms.key, mine, note=note)
            if any(row.key == terms.key and row.note != note for row in ledger.rows()):
                raise FederationError("this key was charged in another session at the same time")
        except CanalError:
            if new:
                journal.disagree()
            raise

    def _queries(self, message: Message, _: bytes) -> bytes:
        asked, journal = self._session(message)
        with journal.open():
            asked.queries.receive(int(message.head["start"]), message.arrays)
        return _yes()

    def _statistics(self, message: Message, request: bytes) -> bytes:
        asked, journal = self._session(message)
        with journal.open():
            return self._contribution(asked, journal).statistics(request)

    def _publish(self, message: Message, _: bytes) -> bytes:
        asked, journal = self._session(message)
        with journal.open():
            statistics = Statistics.from_json(message.head["statistics"])
            if journal.published not in (None, statistics.to_json()):
                raise FederationError("other statistics were published in this session")
            mechanism = asked.mechanism(statistics)
            if not same(message.head["mechanism"], mechanism.to_json()):
                raise FederationError(
                    "the mechanism that is stated does not follow from the plan and the published "
                    "statistics; this site derived other noise"
                )
            if journal.published is None:
                journal.publish(statistics.to_json())
        return _yes()

    def _features(self, message: Message, request: bytes) -> bytes:
        asked, journal = self._session(message)
        with journal.open():
            return self._contribution(asked, journal).features(int(message.head["block"]), request)

    def _contribution(self, asked: Asked, journal: Journal) -> Contribution:
        return Contribution(asked, journal, self.teacher, self._ensemble.claims[0])

    def _finish(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open():
            manifest = Manifest.from_bytes(str(message.head["manifest"]).encode())
            if journal.finished is not None:
                if journal.finished != manifest.digest:
                    raise FederationError("this release was finished with another manifest")
                return _yes()
            agreed = journal.agreed
            if agreed is None:
                raise FederationError("nothing was agreed to in this session")
            terms = Terms.from_json(agreed)
            check_statement(manifest)
            if manifest.plan != terms.agreement.plan.to_json():
                raise FederationError("the manifest is of another plan than was agreed to")
            if terms.agreement.private:
                if manifest.ledger is None or manifest.ledger["key"] != terms.key:
                    raise FederationError("the manifest names another charge than was made here")
                ledger = Ledger(self.settings.path(self.settings.ledger), must_exist=True)
                ledger.commit(terms.key, note=manifest.digest)
            journal.finish(manifest.digest)
            self._asked.pop(terms.session, None)
        return _yes()

    _answers: ClassVar[dict[str, Callable[[Site, Message, bytes], bytes]]] = {
        "initialise": _initialise,
        "train": _train,
        "join": _join,
        "agree": _agree,
        "queries": _queries,
        "statistics": _statistics,
        "publish": _publish,
        "features": _features,
        "finish": _finish,
    }

    def _journal(self, message: Message) -> Journal:
        session = str(message.head["session"])
        if not _SESSION.fullmatch(session):
            raise FederationError("a session is named by 32 hexadecimal digits")
        return Journal(self.settings.sessions / session)

    def _session(self, message: Message) -> tuple[Asked, Journal]:
        """What was agreed to; a process that was started anew reads it from the journal."""
        journal = self._journal(message)
        session = str(message.head["session"])
        if session not in self._asked:
            agreed = journal.agreed
            if agreed is None or journal.finished is not None:
                raise FederationError("nothing is agreed to in this session; agree first")
            self._asked[session] = Asked(Terms.from_json(agreed), journal)
        return self._asked[session], journal


def _yes(**values: Any) -> bytes:
    return Message({"ok": True, **values}).to_bytes()
