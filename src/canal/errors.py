"""Errors that a person can act on: each names the value, what is permitted, and the way out."""

from __future__ import annotations


class CanalError(Exception):
    """Base of all that CANAL raises on purpose; the command line prints it without a trace."""


class InvalidValueError(CanalError, ValueError):
    """An argument lies outside of what it may be."""


class UnknownUnitError(CanalError, KeyError):
    """A unit of privacy for which nothing was stated: an error, never a cost of zero."""

    def __str__(self) -> str:
        """Give the sentence itself; `KeyError` would print its repr."""
        return str(self.args[0])


class LatticeOverflowError(CanalError, OverflowError):
    """Signal and noise would not fit the integers that are to hold them."""


class SecretError(CanalError):
    """The secret behind the noise is missing, exposed, or already destroyed."""


class SecretLostError(SecretError):
    """It is gone for good, or others may know it: its release cannot be resumed."""


class LedgerError(CanalError):
    """The ledger cannot be read, has no such budget, or a request contradicts what it holds."""


class LedgerTamperedError(LedgerError):
    """The chain of hashes does not hold: a row was edited, removed or moved."""


class CommittedError(LedgerError):
    """The charge was used for something else already."""


class ForbiddenError(LedgerError):
    """A cohort does not allow releases of this kind, which protect nobody."""


class BudgetExceededError(LedgerError):
    """A charge would go past the budget of its cohort.

    Args:
        cohort: whose budget it is.
        unit: the unit of privacy.
        requested: the rho that was asked for.
        remaining: the rho that is left.
        epsilons: both as an epsilon of this unit, at the delta of the budget.
    """

    def __init__(
        self,
        cohort: str,
        unit: str,
        requested: float,
        remaining: float,
        epsilons: tuple[float, float],
    ) -> None:
        self.cohort = cohort
        self.unit = unit
        self.requested = requested
        self.remaining = remaining
        super().__init__(
            f"the {unit} budget of cohort {cohort!r} does not cover this release: "
            f"epsilon {epsilons[0]:.4g} of this unit requested, {epsilons[1]:.4g} remaining (rho "
            f"{requested:.6g} and {remaining:.6g}); "
            "ask for a smaller epsilon, or have the privacy officer raise the budget "
            "with `canal ledger budget`"
        )


class DataError(CanalError):
    """A data set that cannot be used as it is; the message names the file and the way out."""


class CheckpointError(CanalError):
    """A checkpoint that is damaged, of another architecture, or not fit to be averaged."""


class ConfigurationError(CanalError):
    """A setting that is unknown or out of range."""


class ReleaseError(CanalError):
    """A release that is damaged, belongs to other arguments, or cannot be made as asked."""


class MismatchError(ReleaseError):
    """Something in a release is not what was stated of it, or what follows from public inputs.

    Args:
        message: the sentence.
        numbers: what was expected and what was found, in full, for programs.
    """

    def __init__(self, message: str, **numbers: object) -> None:
        self.numbers = numbers
        super().__init__(message)


class FederationError(CanalError):
    """Sites and aggregator do not agree, or somebody is missing."""


class RefusalError(FederationError):
    """What a site tells whoever asks, word for word; it names nothing of the site's own."""
