r"""Binds the cohorts of a ledger to their patients, by keyed digests that stay beside it.

A budget is a patient's, and a ledger charges names: the same patients under a second name would
have a second budget. So `LEDGER.patients` (mode 0600) keeps whose images were charged for under
which name: HMAC-SHA256 of the content digest of every image, patient by patient, under a key of
this ledger alone. The chain holds an HMAC over each cohort's list, so that a file which was edited,
cut or taken away is noticed; without the key it is a random number, and tells nothing.

Whoever has the file and an image can see whether that image was there: it never leaves the site.

A digest finds copies of an image, decoded at the same size (`canal.data.overlap`). It does not find
another photograph of the same patient, nor the same images read at another size.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import urandom
from pathlib import Path

from canal.errors import LedgerError, LedgerTamperedError
from canal.files import fsync_folder, replace_file
from canal.privacy.chain import Row

BIND = "bind"
_SUFFIX = ".patients"
_FORMAT = "canal-ledger-patients/1"
# From this share on, of either cohort, two names are the same patients.
MOSTLY = 0.5

# The content digests of each patient's images.
Patients = Collection[frozenset[str]]


@dataclass(frozen=True)
class Shared:
    """Patients that two cohorts have in common.

    Args:
        cohort: that is to be charged.
        other: that is bound to them already.
        patients: of the first, how many are in the other.
        of: patients of the first, in all.
        known: of the other, how many are in the first.
        bound: to the other, in all.
    """

    cohort: str
    other: str
    patients: int
    of: int
    known: int
    bound: int

    @property
    def is_mostly(self) -> bool:
        """Whether the two are the same cohort under two names, or one is within the other."""
        return self.patients >= MOSTLY * self.of or self.known >= MOSTLY * self.bound

    def __str__(self) -> str:
        """In words, with numbers; for the people of the site."""
        return (
            f"{self.patients} of the {self.of} patients of cohort {self.cohort!r} are bound to "
            f"cohort {self.other!r} too, which has {self.bound}"
        )


class Binding:
    """Which patients the cohorts of a ledger have.

    Guarantees:
        What was read is what the chain holds. A run that is killed between this file and the chain
        leaves patients in the file that the chain does not know of; they are not bound.

    Args:
        ledger: path of the ledger.
        rows: of its chain.
    """

    def __init__(self, ledger: Path, rows: Sequence[Row]) -> None:
        place = ledger.resolve()  # a link leads to the same patients
        self.path = place.with_name(place.name + _SUFFIX)
        last = {row.cohort: row.note for row in rows if row.action == BIND}
        self._key, kept = self._read(needed=bool(last))
        self._batches = {
            cohort: self._until(cohort, kept.get(cohort, []), seal) for cohort, seal in last.items()
        }

    @property
    def cohorts(self) -> tuple[str, ...]:
        """That are bound."""
        return tuple(self._batches)

    def shared(self, people: Mapping[str, Patients]) -> list[Shared]:
        """Every overlap of a cohort that is to be charged with another, bound or to be charged.

        Args:
            people: who is in the cohorts that are to be charged.
        """
        mine = {cohort: self._keyed(patients) for cohort, patients in people.items()}
        found = []
        for cohort, patients in mine.items():
            images = frozenset().union(*patients)
            for other in sorted({*self._batches, *mine} - {cohort}):
                there = [*self._entries(other), *mine.get(other, [])]
                pictures = frozenset().union(*there)
                both = sum(not each.isdisjoint(pictures) for each in patients)
                if both:
                    known = sum(not each.isdisjoint(images) for each in there)
                    found.append(Shared(cohort, other, both, len(patients), known, len(there)))
        return found

    def elsewhere(self, people: Mapping[str, Patients]) -> dict[str, int]:
        """How many patients of each cohort are in any other, bound or to be charged.

        Args:
            people: who is in the cohorts that are to be charged.
        """
        mine = {cohort: self._keyed(patients) for cohort, patients in people.items()}
        found = {}
        for cohort, patients in mine.items():
            others = {*self._batches, *mine} - {cohort}
            there = [p for each in others for p in (*self._entries(each), *mine.get(each, []))]
            pictures = frozenset().union(*there)
            found[cohort] = sum(not each.isdisjoint(pictures) for each in patients)
        return found

    def shown(self, people: Mapping[str, Patients], public: Collection[str]) -> dict[str, int]:
        """How many images that are called public are of a patient, by cohort.

        Args:
            people: who is in the cohorts that are to be charged.
            public: content digests of the images.
        """
        asked = self._keyed([frozenset(public)])[0]
        found = {}
        for cohort in sorted({*self._batches, *people}):
            there = [*self._entries(cohort), *self._keyed(people.get(cohort, ()))]
            count = len(asked & frozenset().union(*there))
            if count:
                found[cohort] = count
        return found

    def bind(self, people: Mapping[str, Patients]) -> list[tuple[str, str, int, int]]:
        """Add patients to their cohorts, on disk; those of earlier charges stay.

        Every cohort gets a new line, also where nobody is new. Heads of the chain are published,
        and whoever knows the rows of two releases could compute whether there is one in between.

        Args:
            people: by cohort.

        Returns:
            Of every cohort: its name, what the chain is to hold of it, how many are new, and how
            many of those given are not.
        """
        added = []
        for cohort, patients in people.items():
            bound = frozenset().union(*self._entries(cohort))
            keyed = self._keyed(patients)
            new = sorted(sorted(each) for each in keyed if not each <= bound)
            self._batches.setdefault(cohort, []).append(new)
            *_, seal = self._seals(cohort, self._batches[cohort])
            old = sum(not each.isdisjoint(bound) for each in keyed)
            added.append((cohort, seal, len(keyed) - old, old))
        if added:
            content = {"format": _FORMAT, "key": self._key.hex(), "cohorts": self._batches}
            replace_file(self.path, (json.dumps(content) + "\n").encode(), mode=0o600)
            fsync_folder(self.path.parent)
        return added

    def _entries(self, cohort: str) -> list[frozenset[str]]:
        return [frozenset(each) for batch in self._batches.get(cohort, ()) for each in batch]

    def _keyed(self, patients: Patients) -> list[frozenset[str]]:
        return [frozenset(self._hmac("image", digest) for digest in images) for images in patients]

    def _hmac(self, *parts: object) -> str:
        text = json.dumps(parts, separators=(",", ":"))
        return hmac.digest(self._key, text.encode(), "sha256").hex()

    def _seals(self, cohort: str, batches: list[list[list[str]]]) -> Iterator[str]:
        """After every batch, what the chain holds of all so far."""
        seal = ""
        for batch in batches:
            seal = self._hmac("cohort", cohort, seal, batch)
            yield seal

    def _until(
        self, cohort: str, batches: list[list[list[str]]], last: str
    ) -> list[list[list[str]]]:
        """The batches that the chain knows of."""
        for count, seal in enumerate(self._seals(cohort, batches), start=1):
            if seal == last:
                return batches[:count]
        raise LedgerTamperedError(
            f"{self.path} does not hold the patients that cohort {cohort!r} was charged for; "
            "bring it back from a copy that belongs to this ledger"
        )

    def _read(self, *, needed: bool) -> tuple[bytes, dict[str, list[list[list[str]]]]]:
        try:
            content = json.loads(self.path.read_bytes())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}")
            key = bytes.fromhex(content["key"])
            if len(key) != 32:
                raise ValueError("its key is not of 32 bytes")
            return key, dict(content["cohorts"])
        except FileNotFoundError as error:
            if not needed:
                return urandom(32), {}
            raise LedgerError(
                f"{self.path} is gone, which says whose patients the cohorts of the ledger are; "
                "bring it back from a copy, it belongs beside the ledger"
            ) from error
        except OSError as error:
            raise LedgerError(
                f"cannot read {self.path}: {error.strerror}; it is for the owner of the ledger"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise LedgerTamperedError(
                f"{self.path} is damaged ({error}); bring it back from a copy"
            ) from error
