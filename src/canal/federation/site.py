"""A site: holds a teacher, answers an aggregator that it does not trust, and decides for itself.

Whatever is asked, a site

* knows its own terms (`site.toml`), its own ledger and the fingerprints of the other sites; none of
  them can be changed from outside;
* derives every sigma from the plan again, and pays before a private tensor is read for an answer
  (before that, images are compared with those that its ledger knows);
* answers about a query once: asked again, it sends the same bytes; asked otherwise, it refuses;
* says nothing about its data beside what it pays for. An error while private data were read is
  reported as such, without a reason; the reason is in the site's own log.

It never runs anything that it was sent: a message is values and arrays.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from canal.errors import RefusalError
from canal.features.mechanism import FeatureSpec
from canal.features.statistics import Statistics
from canal.features.store import FEATURES
from canal.federation.cohort import Cohort
from canal.federation.contribution import Contribution
from canal.federation.identity import Identity, read_roster
from canal.federation.introduction import Introduction, kind_of
from canal.federation.journal import Journal, sessions
from canal.federation.lessons import Lessons
from canal.federation.message import Message
from canal.federation.payment import Payment
from canal.federation.questions import Asked
from canal.federation.settings import SiteSettings
from canal.federation.teaching import Teaching
from canal.federation.terms import Terms
from canal.gradients.patients import Patients
from canal.release.checks import same
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
        self._asked: dict[str, Asked | Lessons] = {}

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

    def _join(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open(new=True):
            face = Introduction(self.settings, self.identity, self.cohort)
            if face.is_due(journal):
                self._refuse_crowds()
                journal.introduce(face.made(message.head, journal))
            known, head = journal.member or {}, message.head
            asked = [kind_of(head), head["trust"], bool(head.get("research"))]
            if [known["release"], known["trust"], known["research"]] != asked:
                raise RefusalError("this session was begun under another model of trust")
            if known["initialisation"] != head.get("initialisation", known["initialisation"]):
                raise RefusalError("this session was begun with another initialisation")
        return _yes(**known)

    def _refuse_crowds(self) -> None:
        unused = [each for each in sessions(self.settings.sessions) if each.agreed is None]
        if len(unused) > _MOST_OPEN:
            raise RefusalError(
                f"{len(unused)} sessions were begun here and came to nothing; the site removes "
                "those before it begins another"
            )

    def _consider(self, message: Message, _: bytes) -> bytes:
        """Say whether this site would agree; nothing is charged."""
        journal = self._journal(message)
        with journal.open():
            self._payment(self._check(message, journal)).check()
        return _yes()

    def _agree(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open():
            asked = self._check(message, journal)
            self._payment(asked).make()
            journal.agree(asked.terms.to_json())
            self._asked[asked.terms.session] = asked
            return _yes(there=asked.queries.there if isinstance(asked, Asked) else [])

    def _payment(self, asked: Asked | Lessons) -> Payment:
        """With whose patients they are: the ledger sees whether another cohort has them."""

        def people() -> Sequence[frozenset[str]] | None:
            if isinstance(asked, Asked):
                return self.cohort.teacher.patients
            agreed = asked.terms.adapters
            return self.cohort.patients(agreed.initialisation, agreed.views).people

        return Payment(self.settings, asked, people)

    def _check(self, message: Message, journal: Journal) -> Asked | Lessons:
        """Refuse terms that are not this site's, or not those that it agreed to before."""
        head = message.head
        terms = Terms.from_json(head["terms"])
        agreed = journal.agreed
        if agreed is not None and agreed != terms.to_json():
            raise RefusalError("other terms were agreed to in this session; begin a new one")
        if journal.finished is not None:
            raise RefusalError("this release is finished here; a new one needs a new session")
        if terms.session != head["session"]:
            raise RefusalError("these terms are of another session")
        if (journal.member or {}).get("release") != terms.kind:
            raise RefusalError("these terms are of another kind of release than was begun")
        terms.check(self.settings, journal.keys(), self._known)
        asked = self._of(terms, journal)
        if isinstance(asked, Lessons):
            asked.receive(message.arrays)
        else:
            self._check_teacher(terms.features)
            if not self.settings.again:
                asked.queries.refuse_repeated(sessions(self.settings.sessions))
        if not same(head["stated"], asked.stated):
            raise RefusalError(
                "the noise that is stated is not what the plan's epsilon needs; this site derived "
                "other numbers"
            )
        if isinstance(asked, Lessons):
            # What a machine cannot do, and what is wrong with the data, is found before it costs.
            asked.check_machine()
            self._people(asked)
        return asked

    def _of(self, terms: Terms, journal: Journal) -> Asked | Lessons:
        if terms.kind == FEATURES:
            return Asked(terms, journal, self._shape)
        name = terms.adapters.initialisation
        return Lessons(
            terms, journal, lambda: self.cohort.initialisation(name), self.settings.chunk
        )

    def _check_teacher(self, agreement: FeatureSpec) -> None:
        ensemble, plan = self.cohort.ensemble, agreement.plan
        here = ensemble.initialisation, self.cohort.teacher.tap.layer
        if (agreement.initialisation, agreement.layer) != here:
            raise RefusalError("the teacher here has another initialisation, or another layer")
        if plan.trained_initialisation < ensemble.trained_initialisation:
            raise RefusalError("the initialisation was trained on images; the plan denies it")
        if ensemble.images:
            channels, *size = ensemble.images
            if ensemble.shape(channels, size) != (plan.channels, plan.grid):
                raise RefusalError(
                    f"the plan is for {plan.channels} channels of {plan.grid}, and the teacher "
                    "here has others"
                )

    @property
    def _known(self) -> dict[str, str]:
        return read_roster(self.settings.path(self.settings.roster))

    def _queries(self, message: Message, _: bytes) -> bytes:
        asked, journal = self._features_session(message)
        with journal.open():
            asked.queries.receive(int(message.head["start"]), message.arrays)
        return _yes()

    def _statistics(self, message: Message, request: bytes) -> bytes:
        asked, journal = self._features_session(message)
        with journal.open():
            return self._contribution(asked, journal).statistics(request)

    def _publish(self, message: Message, _: bytes) -> bytes:
        asked, journal = self._session(message)
        if isinstance(asked, Lessons):
            with journal.open():
                asked.publish(int(message.head["patients"]))
            return _yes()
        with journal.open():
            statistics = Statistics.from_json(message.head["statistics"])
            if journal.published not in (None, statistics.to_json()):
                raise RefusalError("other statistics were published in this session")
            if not same(message.head["mechanism"], asked.numbers(statistics)):
                raise RefusalError(
                    "the mechanism that is stated does not follow from the plan and the published "
                    "statistics; this site derived other noise"
                )
            if journal.published is None:
                journal.publish(statistics.to_json())
        return _yes()

    def _features(self, message: Message, request: bytes) -> bytes:
        asked, journal = self._features_session(message)
        with journal.open():
            return self._contribution(asked, journal).features(int(message.head["block"]), request)

    def _contribution(self, asked: Asked, journal: Journal) -> Contribution:
        # Two sessions may have agreed before either answered.
        if not self.settings.again and not journal.has_answered:
            asked.queries.refuse_repeated(sessions(self.settings.sessions))
        return Contribution(asked, journal, self.cohort.teacher, self.cohort.teacher.claim)

    def _count(self, message: Message, request: bytes) -> bytes:
        lessons, journal = self._lessons_session(message)
        with journal.open():
            return self._teaching(lessons, journal).count(request)

    def _round(self, message: Message, request: bytes) -> bytes:
        lessons, journal = self._lessons_session(message)
        with journal.open():
            teaching = self._teaching(lessons, journal)
            latest = message.arrays.get("latest")
            return teaching.round(int(message.head["number"]), latest, request)

    def _teaching(self, lessons: Lessons, journal: Journal) -> Teaching:
        return Teaching(lessons, journal, self._people(lessons))

    def _people(self, lessons: Lessons) -> Patients:
        agreed = lessons.terms.adapters
        return self.cohort.patients(agreed.initialisation, agreed.views)

    def _finish(self, message: Message, _: bytes) -> bytes:
        journal = self._journal(message)
        with journal.open():
            manifest = Manifest.from_bytes(str(message.head["manifest"]).encode())
            if journal.finished is None:
                asked = self._load(journal)
                asked.check_published(manifest)
                Payment(self.settings, asked).commit(manifest.digest)
            elif journal.finished != manifest.digest:
                raise RefusalError("this release was finished with another manifest")
            self._asked.pop(str(message.head["session"]), None)
            # Also where it was: whoever was killed in between has not destroyed everything.
            journal.finish(manifest.digest)
        return _yes()

    _answers: ClassVar[dict[str, Callable[[Site, Message, bytes], bytes]]] = {
        "initialise": _initialise,
        "train": _train,
        "join": _join,
        "consider": _consider,
        "agree": _agree,
        "queries": _queries,
        "statistics": _statistics,
        "publish": _publish,
        "features": _features,
        "count": _count,
        "round": _round,
        "finish": _finish,
    }

    def _journal(self, message: Message) -> Journal:
        session = str(message.head["session"])
        if not _SESSION.fullmatch(session):
            raise RefusalError("a session is named by 32 hexadecimal digits")
        return Journal(self.settings.sessions / session)

    def _features_session(self, message: Message) -> tuple[Asked, Journal]:
        asked, journal = self._session(message)
        if not isinstance(asked, Asked):
            raise RefusalError("this session teaches adapters; nothing is asked about queries")
        return asked, journal

    def _lessons_session(self, message: Message) -> tuple[Lessons, Journal]:
        asked, journal = self._session(message)
        if not isinstance(asked, Lessons):
            raise RefusalError("this session is about queries; no adapter is taught in it")
        return asked, journal

    def _session(self, message: Message) -> tuple[Asked | Lessons, Journal]:
        """What was agreed to; a process that was started anew reads it from the journal."""
        journal, session = self._journal(message), str(message.head["session"])
        if journal.finished is not None:
            raise RefusalError("this release is finished here; agree first, to another")
        if session not in self._asked:
            self._asked[session] = self._load(journal)
        return self._asked[session], journal

    def _shape(self) -> tuple[int, ...]:
        """Of the images that the teacher is made for."""
        return self.cohort.ensemble.images

    def _load(self, journal: Journal) -> Asked | Lessons:
        agreed = journal.agreed
        if agreed is None:
            raise RefusalError("nothing was agreed to in this session; agree first")
        asked = self._of(Terms.from_json(agreed), journal)
        if not Payment(self.settings, asked).is_made:
            raise RefusalError("this session was never paid for; agree first")
        return asked


def _yes(**values: Any) -> bytes:
    return Message({"ok": True, **values}).to_bytes()
