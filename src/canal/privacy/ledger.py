r"""The ledger: what each cohort may spend, what it spent, and proof that nobody edited it.

Reserve, then commit. The charge is written and on disk *before* anything is published, under the
digest of all that determines the release, its secret included. A run that dies
after it has paid: the same release asked for again finds its reservation and pays nothing more. A
reservation counts as spent for ever, since nobody can prove that its noise was never seen.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

from canal.errors import (
    BudgetExceededError,
    CommittedError,
    ForbiddenError,
    InvalidValueError,
    LedgerError,
    LedgerTamperedError,
)
from canal.privacy.binding import BIND, MOSTLY, Binding, Patients, Shared
from canal.privacy.chain import GENESIS, Chain, Row
from canal.privacy.gaussian import Conversion, rho_from_epsilon
from canal.privacy.precision import epsilon_of_release, rho_for_release
from canal.privacy.units import Unit, check_unit

Status = Literal["new", "reserved", "committed"]
# Releases that protect nobody: with noise that anyone can make again, or with none.
Unprotected = Literal["seeded", "noiseless"]
_GREW = (
    "%d patients are new in cohort %r, and %d were in it before; what it was charged and will be "
    "stands for all of them"
)
_UNKNOWN = (
    "it is not known whose patients cohort %r has, so nobody can see whether they are charged "
    "under another name; train its teacher again, with this version"
)
_UNBOUND = (
    "cohort %s was charged by an older version, which kept nothing of its patients; nobody can "
    "see whether they are those of %s, who would spend twice"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Charge:
    """What one release costs one cohort.

    Args:
        cohort: whose data it is: a site's training cohort, or the query images.
        unit: the unit of privacy that the rho is for.
        rho: zCDP cost, above 0.
        draws: noise values that one unit takes part in (`Guarantee.draws`); their finite
            precision is charged as well.
        needs_budget: refuse where the cohort has no budget in this unit. Else the cost is written
            down all the same, and counts against a budget that is set later.
    """

    cohort: str
    unit: Unit
    rho: float
    draws: int = 0
    needs_budget: bool = True

    def __post_init__(self) -> None:
        check_unit(self.unit)
        _check_text("cohort", self.cohort)
        # Plain types: what is hashed must be what SQLite gives back.
        object.__setattr__(self, "rho", float(self.rho))
        object.__setattr__(self, "draws", int(self.draws))
        if not 0 < self.rho < math.inf:
            raise InvalidValueError(f"a charge of rho = {self.rho!r} must be above 0 and finite")
        if not 0 <= self.draws < 2**63:
            raise InvalidValueError(f"draws = {self.draws!r} must be at least 0")


@dataclass(frozen=True)
class Balance:
    """What one cohort may spend under one unit, and what is left.

    Args:
        cohort: whose budget it is.
        unit: the unit of privacy.
        budget: rho that may be spent in all.
        spent: rho of everything reserved or committed.
        remaining: rho that is left, rounded down, after the draws so far.
        uncommitted: the part of `spent` whose release was not finished.
        draws: noise values behind what was spent.
        epsilon_budget: the epsilon that the budget was set as.
        epsilon_spent: what was spent, as an epsilon at the same delta.
        delta: of both.
        conversion: between rho and epsilon.
    """

    cohort: str
    unit: Unit
    budget: float
    spent: float
    remaining: float
    uncommitted: float
    draws: int
    epsilon_budget: float
    epsilon_spent: float
    delta: float
    conversion: Conversion


class Ledger:
    """Budgets and charges of the cohorts of one site, or of one aggregator.

    Guarantees:
        What is reserved never exceeds a budget, whatever processes race and wherever they are
        killed; a charge is either there for all its cohorts or for none.

    Args:
        path: the SQLite file; made when it is not there.
        must_exist: refuse to make one.
    """

    def __init__(self, path: Path | str, *, must_exist: bool = False) -> None:
        self._chain = Chain(Path(path), create=not must_exist)
        self.path = self._chain.path

    def set_budget(
        self,
        cohort: str | Sequence[str],
        unit: Unit,
        *,
        epsilon: float,
        delta: float,
        conversion: Conversion = "exact",
    ) -> None:
        """Say what a cohort may spend under one unit; a later word replaces an earlier one.

        Args:
            cohort: whose budget; or several, set together or not at all.
            unit: of privacy.
            epsilon: in all; 0 freezes the cohort.
            delta: of the same.
            conversion: between rho and epsilon.
        """
        check_unit(unit)
        cohorts = [cohort] if isinstance(cohort, str) else list(cohort)
        for name in cohorts:
            _check_text("cohort", name)
        if not math.isfinite(epsilon):
            raise InvalidValueError(f"a budget of epsilon = {epsilon!r} is none; give a number")
        rho = float(rho_from_epsilon(epsilon, delta, conversion))
        terms = {"epsilon": float(epsilon), "delta": float(delta), "conversion": str(conversion)}
        with self._chain.writing() as writer:
            for name in cohorts:
                writer.append("budget", name, unit, rho, draws=0, key="", note=json.dumps(terms))

    def forbid(self, cohort: str | Sequence[str], kinds: Sequence[Unprotected]) -> None:
        """Refuse from now on releases of a cohort that protect nobody.

        Args:
            cohort: whose; or several, together or not at all.
            kinds: of releases.
        """
        self._rule("forbid", cohort, kinds)

    def allow(self, cohort: str | Sequence[str], kinds: Sequence[Unprotected]) -> None:
        """Take back what `forbid` said; both stay on record."""
        self._rule("allow", cohort, kinds)

    def _rule(self, action: str, cohort: str | Sequence[str], kinds: Sequence[Unprotected]) -> None:
        cohorts = [cohort] if isinstance(cohort, str) else list(cohort)
        for name in cohorts:
            _check_text("cohort", name)
        if not kinds or not set(kinds) <= set(get_args(Unprotected)):
            raise InvalidValueError(
                f"{list(kinds)} are no kinds of releases that protect nobody; choose from "
                f"{', '.join(get_args(Unprotected))}"
            )
        with self._chain.writing() as writer:
            for name in cohorts:
                for kind in kinds:
                    writer.append(action, name, "", 0.0, draws=0, key="", note=kind)

    def check_allowed(self, cohorts: Sequence[str], *, seeded: bool, noiseless: bool) -> None:
        """Refuse a release of a cohort that forbids its kind.

        Args:
            cohorts: who take part.
            seeded: whether its noise comes from a seed.
            noiseless: whether it has none.

        Raises:
            ForbiddenError: with the command that would allow it.
        """
        rows = self.rows()
        kinds: list[tuple[Unprotected, bool]] = [("seeded", seeded), ("noiseless", noiseless)]
        for kind in (name for name, asked in kinds if asked):
            closed = [name for name in cohorts if kind in forbidden(rows, name)]
            if closed:
                flags = " ".join(f"--cohort {name}" for name in closed)
                raise ForbiddenError(
                    f"{self.path} forbids {kind} releases of {', '.join(map(repr, closed))}, which "
                    "protect nobody; make a private one, or have whoever answers for these "
                    f"patients allow it with `canal ledger allow {self.path} {flags} --{kind}`"
                )

    def reserve(
        self,
        key: str,
        charges: Sequence[Charge],
        *,
        note: str = "",
        people: Mapping[str, Patients] | None = None,
        public: Collection[str] = (),
    ) -> Status:
        """Charge a release before it is made, all cohorts or none, and bind them to their patients.

        Args:
            key: digest of all that determines the release: plan, teachers, images, and the
                secret behind its noise. The same key is the same release: it is charged once,
                however often it is asked for.
            charges: what it costs each cohort.
            note: a word for people.
            people: the content digests of the images of every patient, by cohort, as far as they
                are known; private. None: not asked. They are compared with those of every cohort
                that was charged before, and bound to the names of theirs.
            public: content digests of the images that the recipient may see.

        Returns:
            `new` if it was charged now, else how far it had come.

        Raises:
            BudgetExceededError: with requested and remaining; nothing is charged.
            LedgerError: a cohort without a budget, or the same key with other charges; patients who
                are most of another cohort, or are shown on public images.
        """
        _check_text("key", key)
        if not charges:
            raise InvalidValueError("a reservation needs at least one charge")
        if len({(charge.cohort, charge.unit) for charge in charges}) < len(charges):
            raise InvalidValueError("two charges of one reservation name the same cohort and unit")
        with self._chain.writing() as writer:
            earlier = [r for r in writer.rows if r.action == "reserve" and r.key == key]
            if earlier:
                if {(r.cohort, r.unit, r.rho, r.draws) for r in earlier} != {
                    (c.cohort, c.unit, c.rho, c.draws) for c in charges
                }:
                    raise LedgerError(
                        f"release {key[:12]} was charged before with other amounts; a different "
                        "release needs a different key"
                    )
                return "committed" if _is_committed(writer.rows, key) else "reserved"
            binding, shared = self._compare(writer.rows, people or {}, public)
            _check(writer.rows, charges)
            for charge in charges:
                writer.append(
                    *("reserve", charge.cohort, charge.unit, charge.rho),
                    draws=charge.draws,
                    key=key,
                    note=str(note),
                )
            known = binding.cohorts
            charged = {
                row.cohort
                for row in writer.rows
                if row.action == "reserve" and row.unit != "image" and row.key != key
            }
            named = dict.fromkeys(c.cohort for c in charges if c.unit != "image")
            grown = (
                []
                if people is None
                else binding.bind({each: people.get(each, ()) for each in named})
            )
            for cohort, seal, *_ in grown:
                writer.append(BIND, cohort, "", 0.0, draws=0, key="", note=seal)
        for cohort, _, new, old in grown:
            if new and cohort in known:
                _log.warning(_GREW, new, cohort, old)
        unbound = sorted(charged - set(known) - set(named))
        new_here = [cohort for cohort in named if cohort not in charged]
        if people is not None and unbound and new_here:
            _log.warning(_UNBOUND, ", ".join(unbound), ", ".join(new_here))
        for each in shared:
            _log.warning("%s; they pay for both, and neither budget sees the other", each)
        if people is not None:
            for cohort in named:
                if cohort not in people:
                    _log.warning(_UNKNOWN, cohort)
        return "new"

    def check(
        self,
        charges: Sequence[Charge],
        *,
        people: Mapping[str, Patients] | None = None,
        public: Collection[str] = (),
    ) -> None:
        """Refuse what `reserve` would refuse now of a new release; nothing is charged.

        Args:
            charges: what it would cost each cohort.
            people: who is in the cohorts, as for `reserve`.
            public: content digests of the images that the recipient may see.
        """
        rows = self.rows()
        self._compare(rows, people or {}, public)
        _check(rows, charges)

    def _compare(
        self, rows: Sequence[Row], people: Mapping[str, Patients], public: Collection[str]
    ) -> tuple[Binding, list[Shared]]:
        """Refuse patients who would spend twice, or who are public; say who is in two cohorts."""
        binding = Binding(self.path, rows)
        shown = binding.shown(people, public)
        if shown:
            said = ", ".join(f"{count} of cohort {name!r}" for name, count in shown.items())
            raise LedgerError(
                "images that the recipient may see are of patients whom this ledger protects: "
                f"{said}; leave them out of the queries"
            )
        shared, elsewhere = binding.shared(people), binding.elsewhere(people)
        for cohort in people:
            mine = [each for each in shared if each.cohort == cohort]
            if any(each.is_mostly for each in mine) or (
                elsewhere[cohort] >= MOSTLY * len(people[cohort]) > 0
            ):
                raise LedgerError(
                    f"{'; '.join(map(str, mine))}: they would have a second budget; charge them "
                    "under the name that they are bound to, or leave them out"
                )
        return binding, shared

    def commit(self, key: str, *, note: str = "") -> None:
        """Note that a reserved release is finished; saying it twice is saying it once.

        Args:
            key: of the reservation.
            note: a word for people, or the digest of what is published for this charge.

        Raises:
            LedgerError: never reserved, or committed with another note: one charge pays for one
                content. Nothing is written then.
        """
        with self._chain.writing() as writer:
            reserved = [r for r in writer.rows if r.action == "reserve" and r.key == key]
            if not reserved:
                raise LedgerError(f"release {key[:12]} was never reserved; reserve it first")
            committed = {r.note for r in writer.rows if r.action == "commit" and r.key == key}
            if committed - {str(note)}:
                raise CommittedError(
                    f"the charge of release {key[:12]} was used for other content, {committed}; "
                    "make a release of its own, which is charged anew"
                )
            if not committed:
                for r in reserved:
                    writer.append(
                        "commit", r.cohort, r.unit, r.rho, draws=r.draws, key=key, note=str(note)
                    )

    def balance(self, cohort: str, unit: Unit, *, draws: int = 0) -> Balance:
        """What a cohort may spend under one unit, and what it spent.

        Args:
            cohort: whose budget.
            unit: of privacy.
            draws: noise values that the next release will take; they leave a little less.
        """
        return _balance(self.rows(), cohort, check_unit(unit), draws=draws)

    def rows(self) -> list[Row]:
        """Every row, once the chain was found to hold."""
        return self._chain.rows()

    def verify(self, *, head: str | Sequence[str] = ()) -> list[Row]:
        """Check every row against the chain; give them.

        Args:
            head: a head noted elsewhere, earlier, or several; each must be part of the chain.

        Raises:
            LedgerTamperedError: and says at which row.
        """
        rows = self.rows()
        heads = [head] if isinstance(head, str) else head
        for missing in (each for each in heads if not is_head(rows, each)):
            raise LedgerTamperedError(
                f"head {missing[:12]} is not in {self.path}: rows that were there are gone, or "
                "another copy of this ledger was charged; find the one that has it"
            )
        return rows


def is_head(rows: Sequence[Row], head: str) -> bool:
    """Whether the ledger ended there at some time."""
    return head in {GENESIS, *(row.hash for row in rows)}


def head_of(rows: Sequence[Row]) -> str:
    """The hash to note elsewhere."""
    return rows[-1].hash if rows else GENESIS


def balances(rows: Sequence[Row]) -> list[Balance]:
    """Every cohort and unit that has a budget, in order of name."""
    budgets = sorted({(row.cohort, row.unit) for row in rows if row.action == "budget"})
    return [_balance(rows, cohort, check_unit(unit)) for cohort, unit in budgets]


def receipt(rows: Sequence[Row], key: str) -> dict[str, Any]:
    """What a release may publish of the ledger that it was charged to, as plain values.

    It follows from the rows up to the charge alone, so it is the same whenever it is asked for.
    It tells of budgets and of plans, which are public numbers, and of no patient: what a release
    costs is worked out from its plan. Heads are hashes that also cover keyed digests; without the
    keys they are random numbers.

    Args:
        rows: of a ledger in which the key is reserved.
        key: of the reservation.
    """
    mine = [row for row in rows if row.action == "reserve" and row.key == key]
    if not mine:
        raise LedgerError(f"release {key[:12]} was never reserved; reserve it first")
    until = rows[: mine[-1].seq]
    charged = {(row.cohort, row.unit) for row in mine}
    return {
        "head": {"before": head_of(rows[: mine[0].seq - 1]), "after": head_of(until)},
        "totals": [
            {
                "cohort": balance.cohort,
                "unit": balance.unit,
                "epsilon_spent": balance.epsilon_spent,
                "epsilon_budget": balance.epsilon_budget,
                "delta": balance.delta,
                "conversion": balance.conversion,
            }
            for balance in balances(until)
            if (balance.cohort, balance.unit) in charged
        ],
    }


def forbidden(rows: Sequence[Row], cohort: str) -> frozenset[Unprotected]:
    """The kinds of releases that a cohort forbids."""
    found: set[Unprotected] = set()
    for row in rows:
        for kind in get_args(Unprotected):
            if (row.cohort, row.note) == (cohort, kind):
                if row.action == "forbid":
                    found.add(kind)
                elif row.action == "allow":
                    found.discard(kind)
    return frozenset(found)


def _is_committed(rows: Sequence[Row], key: str) -> bool:
    return any(row.action == "commit" and row.key == key for row in rows)


def _check(rows: Sequence[Row], charges: Sequence[Charge]) -> None:
    """Refuse charges that go past a budget, or have none."""
    budgets = {(row.cohort, row.unit) for row in rows if row.action == "budget"}
    missing = [c for c in charges if c.needs_budget and (c.cohort, c.unit) not in budgets]
    if missing:
        unit = missing[0].unit
        raise _no_budget([charge.cohort for charge in missing if charge.unit == unit], unit)
    for charge in charges:
        if (charge.cohort, charge.unit) not in budgets:
            continue
        balance = _balance(rows, charge.cohort, charge.unit, draws=charge.draws)
        if charge.rho > balance.remaining:
            requested, remaining = (
                epsilon_of_release(rho, balance.delta, charge.draws, balance.conversion)
                if rho
                else 0.0
                for rho in (charge.rho, balance.remaining)
            )
            raise BudgetExceededError(
                charge.cohort,
                charge.unit,
                charge.rho,
                balance.remaining,
                (requested, remaining),
            )


def _no_budget(cohorts: Sequence[str], unit: Unit) -> LedgerError:
    names = ", ".join(repr(name) for name in cohorts)
    flags = " ".join(f"--cohort {name}" for name in cohorts)
    return LedgerError(
        f"cohort{'s' * (len(cohorts) > 1)} {names} {'have' if len(cohorts) > 1 else 'has'} no "
        f"{unit} budget in this ledger; whoever answers for them sets one with "
        f"`canal ledger budget LEDGER {flags} --unit {unit} --epsilon E --delta D`"
    )


def _balance(rows: Sequence[Row], cohort: str, unit: Unit, *, draws: int = 0) -> Balance:
    """The balance, and what would remain with `draws` more noise values to pay for."""
    mine = [row for row in rows if row.cohort == cohort and row.unit == unit]
    budgets = [row for row in mine if row.action == "budget"]
    if not budgets:
        raise _no_budget([cohort], unit)
    terms = json.loads(budgets[-1].note)
    epsilon, delta, conversion = terms["epsilon"], terms["delta"], terms["conversion"]
    committed = {row.key for row in mine if row.action == "commit"}
    reserved = [row for row in mine if row.action == "reserve"]
    drawn = sum(row.draws for row in reserved)
    spent = math.fsum(row.rho for row in reserved)
    # Exactly, so that a budget can be spent to the last bit and not one bit more.
    affordable = rho_for_release(epsilon, delta, drawn + draws, conversion) if epsilon else 0.0
    left = Fraction(affordable) - sum(Fraction(row.rho) for row in reserved)
    remaining = float(left)
    if Fraction(remaining) > left:
        remaining = math.nextafter(remaining, -math.inf)
    return Balance(
        cohort=cohort,
        unit=unit,
        budget=budgets[-1].rho,
        spent=spent,
        remaining=max(0.0, remaining),
        uncommitted=math.fsum(row.rho for row in reserved if row.key not in committed),
        draws=drawn,
        epsilon_budget=epsilon,
        epsilon_spent=epsilon_of_release(spent, delta, drawn, conversion),
        delta=delta,
        conversion=conversion,
    )


def _check_text(name: str, value: str) -> None:
    try:
        usable = isinstance(value, str) and bool(value.strip()) and bool(value.encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InvalidValueError(f"{name} = {value!r} must be a name, in readable characters")
