"""Payment: a site's own ledger, charged before anything private is read.

The charge is written first, the agreement after it: whoever finds an agreement finds it paid. The
row names the contract, which holds the site's key of this session. So a charge is good for one
journal alone, and the same contract asked for again after a crash is paid for already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from canal.errors import (
    BudgetExceededError,
    CommittedError,
    ForbiddenError,
    LedgerError,
    RefusalError,
)
from canal.federation.session import Session
from canal.federation.settings import SiteSettings
from canal.privacy.ledger import Ledger

_log = logging.getLogger(__name__)


class Payment:
    """What one session costs a site.

    Args:
        settings: of the site.
        session: what it is to agree to.
    """

    def __init__(self, settings: SiteSettings, session: Session) -> None:
        self.settings, self._session = settings, session
        self.contract, self.due = session.contract, session.due
        self.note = f"contract {session.contract.digest}"

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.settings.path(self.settings.ledger), must_exist=True)

    def check(self) -> None:
        """Refuse what the ledger would refuse, and charge nothing yet."""
        self._refuse_forbidden()
        if not self.due or self.is_made:
            return
        ledger = self._ledger
        try:
            ledger.check((), people=self.people)
        except LedgerError as error:
            raise _reserved(error) from error
        budgets = {(row.cohort, row.unit) for row in ledger.rows() if row.action == "budget"}
        for charge in self.due:
            if (charge.cohort, charge.unit) in budgets:
                left = ledger.balance(charge.cohort, charge.unit, draws=charge.draws).remaining
                if charge.rho > left:
                    raise RefusalError(_refusal(charge.unit))
            elif charge.needs_budget:
                raise RefusalError(f"this site has no {charge.unit} budget in its ledger")

    @property
    def is_made(self) -> bool:
        """Whether this very session was charged.

        Raises:
            RefusalError: the key was used for something else.
        """
        if not self.due:
            return True
        rows = [r for r in self._ledger.rows() if r.key == self.contract.key]
        if any(row.note != self.note for row in rows if row.action == "reserve"):
            raise RefusalError("this key was charged before; a new release needs a new one")
        return bool(rows)

    def make(self) -> None:
        """Charge the ledger; once, however often it is asked for."""
        self._refuse_forbidden()
        if not self.due:
            return
        self._refuse_other_use()
        try:
            self._ledger.reserve(self.contract.key, self.due, note=self.note, people=self.people)
        except BudgetExceededError as error:
            raise RefusalError(_refusal(error.unit)) from error
        except LedgerError as error:
            raise _reserved(error) from error
        self._refuse_other_use()

    def _refuse_forbidden(self) -> None:
        """A research run is charged to nobody; the ledger may say that there is to be none."""
        path = self.settings.path(self.settings.ledger)
        if self.contract.spec.private or not path.is_file():
            return
        noiseless = self.contract.spec.plan.allocation == "none"
        seeded = self.contract.spec.seed is not None
        try:
            self._ledger.check_allowed([self.settings.name], seeded=seeded, noiseless=noiseless)
        except ForbiddenError as error:
            raise RefusalError("this site's ledger forbids releases that protect nobody") from error

    def _refuse_other_use(self) -> None:
        _ = self.is_made

    @property
    def people(self) -> dict[str, Sequence[frozenset[str]]]:
        """By the name of the cohort; private."""
        known = self._session.people
        return {} if known is None else {self.settings.name: known}

    def commit(self, manifest: str) -> None:
        """Note what was published in the end."""
        if not self.due:
            return
        try:
            self._ledger.commit(self.contract.key, note=manifest)
        except CommittedError as error:
            raise RefusalError("this release was finished with another manifest") from error


def _refusal(unit: str) -> str:
    return (
        f"the {unit} budget of this site does not cover this release; ask for a smaller epsilon, "
        "or have its privacy officer raise the budget"
    )


def _reserved(error: LedgerError) -> RefusalError:
    """A refusal that says no more; its reason may tell of patients, and is for this site's log."""
    _log.warning("the ledger refuses: %s", error)
    return RefusalError("this site's ledger refuses; its log says why")
