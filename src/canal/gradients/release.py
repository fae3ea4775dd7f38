"""Making a gradient release: settle what follows from public numbers, publish round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from canal.data.overlap import compare, digests
from canal.errors import ReleaseError
from canal.gradients.gradients import check_rows, made_up
from canal.gradients.mechanism import GradientMechanism, GradientSpec, PatientSum
from canal.gradients.start import settled
from canal.gradients.store import AdapterRelease
from canal.gradients.update import Advice
from canal.privacy.ledger import Ledger
from canal.release.mechanism import LocalFederation, Step, noise_of
from canal.release.plan import check_cohorts
from canal.release.publish import check_protection, publish, telling
from canal.release.workspace import Workspace

if TYPE_CHECKING:
    from canal.gradients.patients import Patients
    from canal.gradients.plan import AdapterPlan
    from canal.gradients.start import Shared
    from canal.release.record import About


@dataclass(frozen=True)
class Progress:
    """How far the rounds are.

    Args:
        number: rounds done.
        rounds: of all.
        epsilon: what they cost a patient so far; None for a research run.
    """

    number: int
    rounds: int
    epsilon: float | None


def train(
    out: Path | str,
    sites: Sequence[Patients],
    shared: Shared,
    plan: AdapterPlan,
    *,
    ledger: Ledger | Path | str | None = None,
    seed: int | None = None,
    paired: bool = False,
    not_private: bool = False,
    about: About | None = None,
    progress: Callable[[int], None] = lambda count: None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> AdapterRelease:
    """Make a gradient release with sites in this process, or finish one that was stopped.

    Args:
        out: folder to publish it in.
        sites: their patients; private.
        shared: the network that the rounds start from.
        plan: what is asked for; subspace and blocks are those that were measured.
        ledger: is charged before any patient is read; one that is there already. A research run
            is not charged, but asks whether the ledger forbids it.
        seed: of the noise of a research run, which protects nobody and is not charged.
        paired: in a research run, the same standard-normal draws for every plan with this seed.
        not_private: must be said to release without noise (allocation `none`).
        about: what its makers say about the release: purpose, contact.
        progress: called with the number of images that passed through the network.
        report: told after every round.
    """
    if isinstance(ledger, Path | str):
        ledger = Ledger(ledger, must_exist=True)
    federation = LocalFederation(sites)
    check_protection(plan, federation.cohorts, seed=seed, ledger=ledger, not_private=not_private)
    mechanism = mechanism_of(
        out, shared, plan, federation.cohorts, seed=seed, paired=paired, progress=progress
    )
    check_sites(mechanism, sites)
    made = publish(
        out,
        mechanism,
        federation,
        ledger=ledger,
        about=about,
        overlap=compare(
            {site.cohort: frozenset(digests(site.arrays)) for site in sites},
            shared.start.asked,
            shared.start.trained_on,
        ),
        report=lambda step: report(progress_of(mechanism, step)),
    )
    return AdapterRelease.open(made)


def mechanism_of(
    out: Path | str,
    shared: Shared,
    plan: AdapterPlan,
    cohorts: tuple[str, ...],
    *,
    seed: int | None = None,
    paired: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> GradientMechanism:
    """The mechanism of a plan, once all that follows from public numbers is settled.

    Args:
        out: folder of the release; beside it is kept what was measured, for a run that goes on.
        shared: the network that the rounds start from.
        plan: what is asked for.
        cohorts: of the sites.
        seed: of the noise of a research run.
        paired: in a research run, the same standard-normal draws for every plan with this seed.
        progress: called with the number of images that passed through the network.
    """
    check_cohorts(cohorts, plan.sites)
    workspace = Workspace(Path(out))
    with telling(workspace):
        start = settled(workspace, shared.start)
    plan = start.public.fit(plan)
    patient_sum = PatientSum.of(plan.calibrate(start.public.weights), start.public)
    spec = GradientSpec(
        plan,
        cohorts,
        start.initialisation,
        start.public.to_json(),
        Advice().settle(start.update, patient_sum),
        start.views,
        noise_of(seed, paired),
    )
    return GradientMechanism(
        *(spec, patient_sum, shared.network, shared.coordinates, start.values),
        *(start.measured, tuple(start.asked or ()), progress),
    )


def check_sites(mechanism: GradientMechanism, sites: Sequence[Patients]) -> None:
    """Refuse sites that do not do what a statement says of them, before they pay.

    Args:
        mechanism: of the release.
        sites: their patients.

    Raises:
        ReleaseError: a site augments otherwise.
        InvalidValueError: a sample's gradient depends on the rest of its batch, on this machine.
    """
    views = mechanism.spec.views
    for site in sites:
        if site.views != views:
            raise ReleaseError(
                f"site {site.cohort!r} has views = {site.views}, the release {views}; "
                "give both the same"
            )
    # Kernels are chosen by the shape of a batch; some of them are even, others are not.
    for shape in {(site.chunk, *site.arrays.images.shape[1:]) for site in sites}:
        check_rows(mechanism.gradients, *made_up(shape))


def progress_of(mechanism: GradientMechanism, step: Step) -> Progress:
    """How far the rounds are once a step is done."""
    plan, epsilon = mechanism.plan, None
    if mechanism.spec.private:
        spent = mechanism.patient_sum.calibrated.after(step.stop)
        epsilon = spent.epsilon(plan.delta, plan.unit, plan.conversion)
    return Progress(step.stop, plan.rounds, epsilon)
