"""Arms of a comparison: what every network is, by its own notes, and how good it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from canal.learning.evaluation import summary
from canal.report.published import Published, PublishedAdapters, PublishedFeatures
from canal.report.run import Network, Run
from canal.report.scores import Difference, difference

# The order tells the story: nothing, noise, what was released, what could have been. Students of a
# release are called what it is called; adapters can be used in three ways.
MODES = {
    "alone": "Alone",
    "noise-only": "Noise only",
    "release": "",
    "adapters": "",
    "predictions": ", predictions",
    "applied": ", not tuned",
    "noiseless": "Without noise",
    "pooled": "Everybody’s images pooled",
}
OF_ADAPTERS = ("adapters", "predictions", "applied")
_LISTENING = ("release", *OF_ADAPTERS)
_UNITS = ("paper", "image", "patient", "membership")
_SPREADS = ("uniform", "canal", "reverse", "flat", "ellipsoid", "channels", "none")
P = TypeVar("P", bound=Published)


@dataclass(frozen=True, eq=False)
class Arm:
    """A network that was measured.

    Args:
        name: for people.
        network: in the run.
        published: the release that it learned from, if that is in the run.
        mode: of a student; the role of all others.
        dice: mean over the test images.
        interval: of the same, 95 %, over the people on the images.
    """

    name: str
    network: Network
    published: Published | None
    mode: str
    dice: float
    interval: tuple[float, float]

    @property
    def is_student(self) -> bool:
        """All others are drawn lighter."""
        return self.network.role == "student"

    @property
    def images(self) -> int:
        """How many it was measured on."""
        return len(self.network.scores or ())

    @property
    def learned(self) -> bool:
        """Whether it learned from a release with noise: what the report is about."""
        return self.mode in _LISTENING and (self.published is None or self.published.noisy)

    @property
    def listened(self) -> bool:
        """Whether it heard anything but noise of a release."""
        return self.mode in (*_LISTENING, "noiseless")

    def less(self, other: Arm) -> Difference | None:
        """This one less another; None if they were measured on other images."""
        return difference(self.network.scores or (), other.network.scores or ())


@dataclass(frozen=True)
class Arms:
    """All that were measured, students first, and who was not."""

    measured: tuple[Arm, ...]
    unmeasured: tuple[Network, ...]

    @classmethod
    def of(cls, run: Run) -> Arms:
        """Every network of a run."""
        arms = [_arm(run, network) for network in run.networks if network.scores]
        twice = Counter(arm.name for arm in arms)
        unique = (
            replace(arm, name=f"{arm.name} ({arm.network.where})") if twice[arm.name] > 1 else arm
            for arm in arms
        )
        return cls(
            tuple(sorted(unique, key=_order)),
            tuple(network for network in run.networks if not network.scores),
        )

    @property
    def students(self) -> tuple[Arm, ...]:
        """In the order of the story."""
        return tuple(arm for arm in self.measured if arm.is_student)

    def alone(self, beside: Arm) -> Arm | None:
        """The student without a release: of the same seed if there is one, on the same images."""
        return _nearest(beside, (arm for arm in self.students if arm.mode == "alone"))

    def noise_only(self, beside: Arm) -> Arm | None:
        """The student of mere noise as large as that of the same release; no other's."""
        found = (arm for arm in self.students if arm.mode == "noise-only")
        return _nearest(beside, (arm for arm in found if arm.published == beside.published))

    def uniform(self, beside: Arm) -> Arm | None:
        """The student of an even spread of the same budget."""
        if not isinstance(beside.published, PublishedFeatures):
            return None
        learned = [arm for arm in self.students if arm.learned]
        even = beside.published.evenly(arm.published for arm in learned if arm.published)
        return _nearest(
            beside,
            (arm for arm in learned if even is not None and arm.published == even),
        )

    def adapters(self, beside: Arm) -> Arm | None:
        """The student of adapters, tuned before any other; None beside one of adapters."""
        if beside.mode in OF_ADAPTERS:
            return None
        return _nearest(beside, (a for a in self.students if a.learned and a.mode in OF_ADAPTERS))

    @property
    def main(self) -> Arm | None:
        """The student of the headline: CANAL under the paper's accounting, or the next best."""
        learned = [arm for arm in self.students if arm.learned]
        chosen = [
            arm for arm in learned if arm.published and arm.published.plan.allocation == "canal"
        ]
        paper = [arm for arm in chosen if arm.published and arm.published.plan.unit == "paper"]
        return next(iter(paper or chosen or learned), None)


def main_release(run: Run, arms: Arms) -> Published | None:
    """The release of the headline, whether or not anybody learned from it."""
    if arms.main is not None and arms.main.published is not None:
        return arms.main.published
    return _first(run.releases)


def main_features(run: Run, arms: Arms) -> PublishedFeatures | None:
    """The same, among releases of features."""
    chosen = main_release(run, arms)
    return chosen if isinstance(chosen, PublishedFeatures) else _first(run.features)


def _first(releases: Iterable[P]) -> P | None:
    ordered = sorted(releases, key=release_order)
    chosen = [each for each in ordered if each.plan.allocation == "canal"]
    paper = [each for each in chosen if each.plan.unit == "paper"]
    return next(iter(paper or chosen or ordered), None)


def release_order(published: Published) -> tuple[Any, ...]:
    """Features first, of those the paper's accounting, uniform before CANAL; no noise last."""
    plan = published.plan
    return (
        not published.noisy,
        [PublishedFeatures, PublishedAdapters, Published].index(type(published)),
        _UNITS.index(plan.unit),
        plan.epsilon,
        _SPREADS.index(plan.allocation) if plan.allocation in _SPREADS else 0,
        published.where,
    )


def _nearest(beside: Arm, arms: Iterable[Arm]) -> Arm | None:
    comparable = [arm for arm in arms if arm.network.dice.keys() == beside.network.dice.keys()]
    seed = beside.network.training.get("seed")
    same: Sequence[Arm] = [a for a in comparable if a.network.training.get("seed") == seed]
    return next(iter(same or comparable), None)


def _arm(run: Run, network: Network) -> Arm:
    notes = network.about.notes
    published = run.release(notes.get("release"))
    mode = str(notes.get("mode", "")) if network.role == "student" else network.role
    found = summary(list(network.scores or ()))
    low, high = found["dice_interval"]
    return Arm(
        _name(network, published, mode), network, published, mode, found["dice"], (low, high)
    )


def _name(network: Network, published: Published | None, mode: str) -> str:
    notes = network.about.notes
    if network.role == "teacher":
        return f"Teacher of {notes.get('site') or network.where}"
    if network.role == "initialisation":
        return "Shared initialisation"
    if mode not in _LISTENING:
        return MODES.get(mode) or network.where
    if published is not None:
        return published.name + MODES[mode]
    return f"Release {str(notes.get('release'))[:12]}…, not in this run{MODES[mode]}"


def _order(arm: Arm) -> tuple[Any, ...]:
    if not arm.is_student:
        return (1, arm.mode != "teacher", arm.name)
    modes = list(MODES)
    # What was taught without noise is a control, whatever it was used for.
    mode = "noiseless" if arm.mode in OF_ADAPTERS and not arm.learned else arm.mode
    place = modes.index(mode) if mode in modes else len(modes)
    release = release_order(arm.published) if arm.published else ()
    return (0, place, arm.published is None, release, arm.name)
