"""What a site does for a gradient release: hold the initialisation, sum its patients' gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from canal.errors import InvalidValueError, RefusalError
from canal.gradients.gradients import check_rows, made_up
from canal.gradients.mechanism import GradientMechanism, GradientSpec, PatientSum
from canal.gradients.public import Public
from canal.gradients.subspace import Basis
from canal.learning import checkpoint
from canal.learning.networks import weights_digest

if TYPE_CHECKING:
    from canal.gradients.patients import Patients
    from canal.release.mechanism import SiteCohort


def introduce(cohort: SiteCohort, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The initialisation that the rounds start from, if it came.

    Args:
        cohort: what the site has.
        wanted: what the aggregator asks for.
    """
    name = str(wanted["initialisation"])
    cohort.initialisation(name)
    return {"initialisation": name}


def claim(cohort: SiteCohort, wanted: Mapping[str, Any]) -> list[str]:
    """What determines the sums of the site's patients; private."""
    patients = cohort.patients(str(wanted["initialisation"]), int(wanted.get("views", 1)))
    made: list[str] = patients.claim
    return made


class GradientSite:
    """One release, as a site sees it.

    Args:
        spec: of the release.
        cohort: what the site has; private.
    """

    def __init__(self, spec: GradientSpec, cohort: SiteCohort) -> None:
        self.spec, self.cohort = spec, cohort
        self._derived: GradientMechanism | None = None
        self._checked = False

    @property
    def data(self) -> Patients:
        """The patients; private."""
        patients: Patients = self.cohort.patients(self.spec.initialisation, self.spec.views)
        return patients

    @property
    def lacking(self) -> list[int]:
        """The public basis, where the rounds are in one and it did not come yet."""
        return [0] if self.spec.plan.directions and self._derived is None else []

    def accept(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Take the public basis; whether it is the right one, the spec says.

        Args:
            number: 0.
            arrays: of the basis.
        """
        if number or not self.spec.plan.directions:
            raise RefusalError("these rounds are in no public basis")
        try:
            basis = Basis.from_arrays(dict(arrays))
        except (InvalidValueError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise RefusalError(f"what came does not fit: {error}") from error
        derived = self._derive(basis)  # refused, if it is not the one that the spec names
        if self.lacking:
            self._derived = derived
        return basis.to_arrays()

    @property
    def items(self) -> tuple[str, ...]:
        """Rounds are about no public images."""
        return ()

    @property
    def mechanism(self) -> GradientMechanism:
        """What follows from the spec, the initialisation and the public basis."""
        if self.lacking:
            raise RefusalError("these rounds are in a public basis, and it did not come yet")
        if self._derived is None:
            self._derived = self._derive(None)
        return self._derived

    def _derive(self, basis: Basis | None) -> GradientMechanism:
        spec, folder = self.spec, self.cohort.initialisation(self.spec.initialisation)
        network, _ = checkpoint.load(folder)
        if weights_digest(network) != spec.initialisation:
            raise RefusalError("the rounds start from another initialisation than is here")
        try:
            coordinates = spec.plan.adapter.install(network)
            public = Public.from_json(spec.public, coordinates.groups, basis)
            patient_sum = PatientSum.of(spec.plan.calibrate(public.weights), public)
        except (InvalidValueError, LookupError, TypeError, ValueError) as error:
            raise RefusalError(f"this contract does not fit the network: {error}") from error
        return GradientMechanism(spec, patient_sum, network, coordinates, coordinates.read())

    def check(self) -> None:
        """Refuse a machine on which a sample's gradient depends on the rest of its batch."""
        patients = self.data
        if self._checked:
            return
        start = checkpoint.describe(self.cohort.initialisation(self.spec.initialisation))
        shape = patients.chunk, int(start.architecture["in_channels"]), *start.size
        try:
            check_rows(self.mechanism.gradients, *made_up(shape))
        except InvalidValueError as error:
            raise RefusalError(str(error)) from error
        self._checked = True
