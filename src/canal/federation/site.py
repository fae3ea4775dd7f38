"""A site: answers an aggregator that it does not trust, and decides for itself.

Whatever is asked, a site

* knows its own settings (`site.toml`), its own ledger and the fingerprints of the other sites; none
  of them can be changed from outside;
* derives every sigma from the plan again, and pays before a private tensor is read for an answer
  (before that, images are compared with those that its ledger knows);
* answers a step once: asked again, it sends the same bytes; asked otherwise, it refuses;
* says nothing about its data beside what it pays for. An error while private data were read is
  reported as such, without a reason; the reason is in the site's own log.

It never runs anything that it was sent: a message is values and arrays.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from canal.errors import RefusalError
from canal.federation.cohort import Cohort
from canal.federation.contract import Contract
from canal.federation.identity import Identity, read_roster
from canal.federation.introduction import Introduction, asked_as, begun_as
from canal.federation.journal import Journal, sessions
from canal.federation.message import Message
from canal.federation.payment import Payment
from canal.federation.session import Session
from canal.federation.settings import SiteSettings
from canal.release.manifest import Manifest

_SESSION = re.compile(r"[0-9a-f]{32}")
# Sessions that were begun and never agreed to; each has a folder.
_MOST_OPEN = 100
_log = logging.getLogger(__name__)


class Site:
    """One hospital.

    Args:
        settings: what it is and allows.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self.cohort = Cohort(settings)
        # Those that are paid for, and the one that was proposed last.
        self._sessions: dict[str, Session] = {}
        self._proposal: Session | None = None

    @classmethod
    def open(cls, folder: Path) -> Site:
        """The site of a folder; what an earlier process had still to destroy is destroyed."""
        settings = SiteSettings.read(folder)
        for journal in sessions(settings.sessions):
            if journal.finished is not None:
                with suppress(RefusalError), journal.open():  # unless another process is at it
                    journal.finish(journal.finished)
        return cls(settings)

    @cached_property
    def identity(self) -> Identity:
        """By which the others know this site."""
        known = self.settings
        return Identity.load(known.path(known.certificate), known.path(known.key))

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
                    raise RefusalError(f"a site is not asked for {kind!r}")
                return self._answers[kind](self, message, request)
        except RefusalError as error:
            _log.warning("refused: %s", error)
            return Message({"ok": False, "error": str(error)}).to_bytes()
        # Other errors name files of this host, or what is in them.
        except Exception:
            _log.exception("failed")
            return Message({"ok": False, "error": "it failed; its own log says why"}).to_bytes()

    def _initialise(self, message: Message, _: bytes) -> bytes:
        self.cohort.receive(message.head, message.arrays)
        return _yes()

    def _train(self, message: Message, _: bytes) -> bytes:
        return _yes(state=self.cohort.train(str(message.head["initialisation"])))

    def _handshake(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open(new=True):
            face, head = Introduction(self.settings, self.identity, self.cohort), message.head
            if face.is_due(head, journal):
                self._refuse_too_many()
                journal.introduce(face.made(head, journal))
            known = journal.member or {}
            if begun_as(known) != asked_as(head):
                raise RefusalError("this session was begun under another model of trust")
            here = known.get("initialisation")
            if here != head.get("initialisation", here):
                raise RefusalError("this session was begun with another initialisation")
        return _yes(**known)

    def _refuse_too_many(self) -> None:
        unused = [each for each in sessions(self.settings.sessions) if each.agreed is None]
        if len(unused) > _MOST_OPEN:
            raise RefusalError(
                f"{len(unused)} sessions were begun here and came to nothing; the site removes "
                "those before it begins another"
            )

    def _upload(self, message: Message, _: bytes) -> bytes:
        """Keep a block of public inputs."""
        journal = self._journal(message)
        with journal.open():
            session = self._proposed(message, journal)
            session.accept(_number(message), message.arrays)
        return _yes()

    def _prepare(self, message: Message, _: bytes) -> bytes:
        """Say whether this site would agree, or which inputs it lacks; nothing is charged."""
        journal = self._journal(message)
        with journal.open():
            session = self._proposed(message, journal)
            if session.lacking:
                return _yes(lacking=session.lacking)
            self._check(message, session)
            Payment(self.settings, session).check()
        return _yes(lacking=[])

    def _commit(self, message: Message, _: bytes) -> bytes:
        """Agree, and pay."""
        journal = self._journal(message)
        with journal.open():
            session = self._proposed(message, journal)
            self._check(message, session)
            Payment(self.settings, session).make()
            journal.agree(session.contract.to_json(), session.part.items)
            self._sessions[session.contract.session], self._proposal = session, None
            return _yes()

    def _proposed(self, message: Message, journal: Journal) -> Session:
        """Refuse a contract that is not this site's, or not the one that it agreed to before."""
        contract, name = Contract.from_json(message.head["contract"]), message.head["session"]
        if journal.agreed not in (None, contract.to_json()):
            raise RefusalError("another contract was agreed to in this session; begin a new one")
        if journal.finished is not None:
            raise RefusalError("this release is finished here; a new one needs a new session")
        if contract.session != name:
            raise RefusalError("this contract is of another session")
        if (journal.member or {}).get("release") != contract.spec.kind:
            raise RefusalError("this contract is of another kind of release than was begun")
        contract.check(self.settings, journal.keys(), self._known)
        for known in (self._sessions.get(contract.session), self._proposal):
            if known is not None and known.contract.digest == contract.digest:
                return known
        self._proposal = Session(contract, journal, self.cohort)
        return self._proposal

    def _check(self, message: Message, session: Session) -> None:
        """Refuse what cannot be done here, what is not stated as it is, and a second view."""
        session.check(message.head["stated"])
        if not self.settings.again:
            session.refuse_repeated(sessions(self.settings.sessions))

    @property
    def _known(self) -> dict[str, str]:
        return read_roster(self.settings.path(self.settings.roster))

    def _announce(self, message: Message, _: bytes) -> bytes:
        session, journal = self._agreed(message)
        with journal.open():
            session.announce(message.head["statistics"], message.head["numbers"])
        return _yes()

    def _sum(self, message: Message, request: bytes) -> bytes:
        session, journal = self._agreed(message)
        with journal.open():
            # Two sessions may have agreed before either answered.
            if not self.settings.again and not journal.has_answered:
                session.refuse_repeated(sessions(self.settings.sessions))
            name, latest = str(message.head["step"]), dict(message.arrays)
            return session.respond(name, _number(message), latest, request)

    def _finish(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open():
            manifest = Manifest.from_bytes(str(message.head["manifest"]).encode())
            if journal.finished is None:
                session = self._load(journal)
                session.check_published(manifest)
                Payment(self.settings, session).commit(manifest.digest)
            elif journal.finished != manifest.digest:
                raise RefusalError("this release was finished with another manifest")
            self._sessions.pop(str(message.head["session"]), None)
            # Also where it was: whoever was killed in between has not destroyed everything.
            journal.finish(manifest.digest)
        return _yes()

    _answers: ClassVar[dict[str, Callable[[Site, Message, bytes], bytes]]] = {
        "initialise": _initialise,
        "train": _train,
        "handshake": _handshake,
        "prepare": _prepare,
        "upload": _upload,
        "commit": _commit,
        "announce": _announce,
        "sum": _sum,
        "finish": _finish,
    }

    def _journal(self, message: Message) -> Journal:
        session = str(message.head["session"])
        if not _SESSION.fullmatch(session):
            raise RefusalError("a session is named by 32 hexadecimal digits")
        return Journal(self.settings.sessions / session)

    def _agreed(self, message: Message) -> tuple[Session, Journal]:
        """The session that was agreed to; a process that was started anew reads its journal."""
        journal, name = self._journal(message), str(message.head["session"])
        if journal.finished is not None:
            raise RefusalError("this release is finished here; agree first, to another")
        if journal.agreed is None:
            raise RefusalError("nothing was agreed to in this session; agree first")
        known = self._sessions.get(name)
        if known is None or known.contract.to_json() != journal.agreed:
            self._sessions[name] = self._load(journal)
        return self._sessions[name], journal

    def _load(self, journal: Journal) -> Session:
        if journal.agreed is None:
            raise RefusalError("nothing was agreed to in this session; agree first")
        session = Session(Contract.from_json(journal.agreed), journal, self.cohort)
        if not Payment(self.settings, session).is_made:
            raise RefusalError("this session was never paid for; agree first")
        return session


def _number(message: Message) -> int:
    number = message.head["number"]
    if type(number) is not int:  # what only counts as one would be asked about under two names
        raise RefusalError(f"{number!r} is no number of a step or block")
    return number


def _yes(**values: Any) -> bytes:
    return Message({"ok": True, **values}).to_bytes()
