"""Arms of attacks: what an adversary gets from releases, with noise and without.

*Images* (paper, tab:exp-attacks): is this image among the queries, what does it look like, and what
can a test between "with" and "without" one patient of a site find at best?

*Membership* of patients: an attack that finds nobody where there is no noise says nothing about
noise. So canaries are put into a small cohort, each into half of the runs, and the same attack is
made on releases without noise, with a patient's epsilon, and with the paper's.

- Of feature releases every shadow is a teacher trained on the cohort and half of the canaries; each
  in turn plays the site's teacher, attacked by all others. Trainings favour the adversary: they
  start from a trained network, go on slowly, and do not augment. So what patients change nearly
  adds up, and shadows can learn it; at twenty times the learning rate what one patient changes
  depends on all others, and the same attack finds hardly anybody.
- Of gradient releases there are whole ones, each with members of its own, attacked in the sums that
  it published. Then other members and other noise are drawn on the way that each of them went, for
  rates of false alarms that a few releases cannot show.

Noise is seeded, and its draws are shared by arms: those of statistics and those of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from canal import Queries, Release, TrainingSettings, load_ensemble, train_teacher
from canal.attacks.individual import exchange, loss_of_patient
from canal.attacks.inversion import invert
from canal.attacks.lira import Kind, Pool, Shadows, exact_ratios, known_ratios, plant, train_shadows
from canal.attacks.membership import CONTROLS, Target, attack_shadows, gather, match
from canal.attacks.roc import Finding, Played, features_mu
from canal.attacks.verdict import exact_epsilon
from canal.attacks.view import noiseless_rows, spreads
from canal.gradients.patients import Patients
from canal.learning.networks import variation
from canal.learning.teacher import load_initialisation
from paper.arms import FeatureRelease, as_floats, price
from paper.rounds import Rounds
from paper.scenario import Study, alone_in, changed, digest
from paper.trial import Arm

if TYPE_CHECKING:
    from canal.data.arrays import Arrays

SITE = "site-1"
RATES = (0.01, 0.001)
# Digits of a score that are kept; those under much noise are small, so not a number of decimals.
_DIGITS = 4


@dataclass(frozen=True)
class ImageAttacks(Arm):
    """A release and what attacks on its images, and on one patient of a site, made of it.

    Args:
        release: that is attacked.
        left_out: patients of the first site, without each of whom its teacher is trained again.
        decoder_steps: of the inversion.
    """

    kind: ClassVar[str] = "image-attacks"

    release: FeatureRelease
    left_out: int = 2
    decoder_steps: int = 600

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Release, attack, measure."""
        ensemble, asked = study.ensemble, study.part("recipient")
        others, seed = study.part("test"), study.scenario.seed
        release = self.release.create(study, folder / "release")
        matched = match(release, ensemble, asked, others)
        steps = iter(range(1, self.decoder_steps + 1))
        inverted = invert(
            *(release, ensemble, asked, others),
            steps=self.decoder_steps,
            seed=seed,
            progress=lambda _: study.report("inversion", next(steps), self.decoder_steps),
        )
        inverted.write_pictures(folder / "inversion.png", asked)
        mu, digest = features_mu(release, "image"), release.manifest.digest
        found, decoded = Finding("", digest, matched, "image", mu).to_json(), inverted.to_json()
        left_out = [self._without(study, release, number) for number in range(self.left_out)]
        return {
            "epsilon": price(release)["epsilon"]["patient"],
            "mu": features_mu(release, "patient"),
            "apart": _apart(release, noiseless_rows(release, ensemble, asked)),
            "images": {"mu": mu, **{name: found[name] for name in ("auc", "tpr", "roc")}},
            "left_out": [{name: each[name] for name in ("mu", "epsilon")} for each in left_out],
            "inversion": {name: decoded[name] for name in ("decoder", "mean_image", "ssim_gain")},
        }

    def _without(self, study: Study, release: Release, number: int) -> dict[str, Any]:
        """What one patient of the first site moved."""
        cohort, place = study.part(SITE), study.folder / f"without-{number}"
        person = list(dict.fromkeys(cohort.patients.values()))[number]
        with alone_in(place):
            train_teacher(
                *(place, study.init, cohort.without(person), study.training),
                name=SITE,
                report=study.told(place.name),
            )
        other = exchange(study.ensemble, load_ensemble([place]))
        return loss_of_patient(
            release, study.ensemble, other, Queries.of(study.part("recipient"))
        ).to_json()


def _apart(release: Release, rows: Any) -> float:
    """Median distance of two queries, in units of the noise: what there is to tell them by."""
    scaled = rows / spreads(release)
    squares = np.square(scaled).sum(axis=1)
    apart = squares[:, None] + squares - 2 * scaled @ scaled.T
    return float(np.sqrt(np.median(apart[np.triu_indices(len(rows), 1)])))


@dataclass(frozen=True)
class Variation(Arm):
    """How much the teachers' bottlenecks vary over images, of their size."""

    kind: ClassVar[str] = "variation"

    def run(self, study: Study, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """Train the teachers."""
        images = as_floats(study.part("recipient"))
        taps = [each.tap for each in study.ensemble.teachers]
        return {"variation": [variation(tap.features(images)) for tap in taps]}


@dataclass(frozen=True)
class Cohort:
    """Who is in a small cohort.

    Args:
        canary: kind of the canaries, each of whom is in half of the runs.
        canaries: how many.
        ordinary: patients as they are, each of whom is in half of the runs as well.
        always: patients beside them, who are in all runs.
    """

    canary: Kind = "scrambled"
    canaries: int = 16
    ordinary: int = 8
    always: int = 8

    def sometimes(self, study: Study) -> Arrays:
        """Who is in half of the runs; canaries are of the test part, whom no cohort knows."""
        made = plant(study.part("test"), self.canary, self.canaries, seed=study.scenario.seed)
        last = self.always + self.ordinary
        return made.beside(_people(study.part(SITE), self.always, last))

    def core(self, study: Study, site: str) -> Arrays:
        """Who is in all runs."""
        return _people(study.part(site), 0, self.always)


def _people(arrays: Arrays, first: int, last: int) -> Arrays:
    """All images of some people, in the order of their first images."""
    chosen = set(list(dict.fromkeys(arrays.patients.values()))[first:last])
    return arrays.rows([name for name in arrays.ids if arrays.patients[name] in chosen])


@dataclass(frozen=True)
class ShadowNetworks:
    """Teachers and shadows of an attack on feature releases.

    Args:
        cohort: who is in the first site's.
        count: of the shadows.
        steps: of each training.
        rate: of learning.
    """

    cohort: Cohort = Cohort()
    count: int = 192
    steps: int = 100
    rate: float = 1e-4

    @property
    def training(self) -> TrainingSettings:
        """Of teachers and shadows."""
        return TrainingSettings(
            steps=self.steps, batch_size=8, learning_rate=self.rate, augment=False
        )

    def teachers(self, study: Study, folder: Path) -> list[Path]:
        """One for each site, of a small cohort without canaries."""
        made = []
        for site in study.sites:
            place, cohort = folder / site, self.cohort.core(study, site)
            train_teacher(
                place, study.init, cohort, self.training, name=site, report=study.told(site)
            )
            made.append(place)
        return made

    def pool(self, study: Study) -> Pool:
        """The first site's cohort, and who is put there."""
        return Pool.of_canaries(self.cohort.core(study, SITE), self.cohort.sometimes(study))

    def shadows(self, study: Study, folder: Path) -> tuple[list[Path], Any]:
        """Folders of the shadows, and who was in each of them."""
        pool = self.pool(study)
        halves = pool.halves(self.count, study.scenario.seed)
        trained = train_shadows(
            *(folder / "shadows", study.init, pool, halves, self.training),
            lambda number, progress: study.report("shadows", number, self.count),
        )
        return trained, halves


@dataclass(frozen=True)
class FeatureMembership(Arm):
    """A feature release of teachers of small cohorts, and the membership of patients of one site.

    Args:
        release: that is attacked.
        networks: teachers and shadows.
    """

    kind: ClassVar[str] = "feature-membership"

    release: FeatureRelease
    networks: ShadowNetworks = ShadowNetworks()

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Release, attack."""
        seed, place = (
            study.scenario.seed,
            study.folder / f"shadows-{digest(changed(self.networks))}",
        )
        with alone_in(place):
            ensemble = load_ensemble(self.networks.teachers(study, place), study.init)
            trained, halves = self.networks.shadows(study, place)
        asked, noisy = study.part("recipient"), self.release.allocation != "none"
        release = self.release.create(study, folder / "release", ensemble=ensemble)
        target = Target.of(release, asked)
        shadows = Shadows(target.features(trained), halves)
        canaries = np.array(["canary" in who for who in self.networks.pool(study).patients])
        delta, mu = release.plan.delta, features_mu(release, "patient")
        images = as_floats(asked)
        made: dict[str, Any] = {
            "epsilon": None if mu is None else exact_epsilon(mu, delta),
            "mu": mu,
            "variation": [variation(each.tap.features(images)) for each in ensemble.teachers],
        }
        for name, whom in (("canaries", canaries), ("ordinary", ~canaries)):
            lira, plain = attack_shadows(
                *(shadows.of(whom), target.noise, seed, CONTROLS), noise=float(noisy)
            )
            made[name] = _with_scores(lira) | {"plain": plain.roc.auc, "p": lira.p}
        return made


@dataclass(frozen=True)
class RoundsMembership(Arm):
    """Gradient releases, each with members of its own, and the membership of their patients.

    Args:
        rounds: settings of every release.
        cohort: who is in half of the releases; nobody is in all.
        releases: how many.
    """

    kind: ClassVar[str] = "rounds-membership"

    rounds: Rounds
    cohort: Cohort = Cohort(ordinary=24, always=0)
    releases: int = 8

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Release, attack; and play on the same ways."""
        seed, augmult, noisy = study.scenario.seed, self.rounds.augmult, self.rounds.noise
        pool = Patients("pool", self.cohort.sometimes(study), views=augmult)
        canaries = np.array([who.startswith("canary") for who in pool.rows])
        rng = np.random.default_rng([seed, 26])
        members = rng.random((self.releases, len(pool))) < 0.5
        prepared = self.rounds.prepare(study, len(pool) // 2, 1)
        exact, known, plays, mus = [], [], [], []
        for number, row in enumerate(members):
            study.report("releases", number, self.releases)
            cohort = Patients(SITE, _members(pool, row), views=augmult)
            release = prepared.release(
                folder / f"{number}", [cohort], 1000 * seed + number, study.report
            )
            network, _ = load_initialisation(study.init)
            evidence = gather(release, network, [pool])
            seen = evidence if noisy else evidence.without_noise()
            exact.append(exact_ratios(seen.gram, seen.observed))
            known.append(known_ratios(seen.gram, seen.observed, row))
            plays.append(evidence.play(np.ones(len(pool), bool), number, noise=noisy))
            mus.append(evidence.mu)
        promise = prepared.plan.calibrate().guarantee if noisy else None
        made: dict[str, Any] = {
            "epsilon": self.rounds.epsilon if noisy else None,
            "mu": None if promise is None else promise.mu("membership"),
        }
        for name, whom in (("canaries", canaries), ("ordinary", ~canaries)):
            played = Played(
                np.concatenate([each.scores[:, whom] for each in plays]),
                np.concatenate([each.members[:, whom] for each in plays]),
            )
            made[name] = _with_scores(Played(np.array(exact)[:, whom], members[:, whom])) | {
                "known": Played(np.array(known)[:, whom], members[:, whom]).roc.auc,
                "played": _rates(played),
                "mu": np.median(np.array(mus)[:, whom]).item(),
            }
        return made


def _members(pool: Patients, row: Sequence[bool]) -> Arrays:
    """Images of these patients."""
    chosen = [mine for inside, mine in zip(row, pool.rows.values(), strict=True) if inside]
    return pool.arrays.rows([pool.arrays.ids[each] for mine in chosen for each in mine])


def _rates(played: Played) -> dict[str, Any]:
    """What a table says of it."""
    roc = played.roc
    seen = [rate for rate in RATES if rate * len(roc.others) >= 1]
    return {
        "auc": roc.auc,
        "auc_interval": list(played.auc_interval),
        "members": len(roc.members),
        "others": len(roc.others),
        "tpr": {f"{rate:g}": [roc.tpr(rate), *roc.tpr_interval(rate)] for rate in seen},
    }


def _with_scores(played: Played) -> dict[str, Any]:
    """The same with the scores: data sets are looked at together."""
    roc = played.roc
    return _rates(played) | {
        "scores": {
            side: [float(f"{score:.{_DIGITS}g}") for score in scores]
            for side, scores in (("members", roc.members), ("others", roc.others))
        }
    }
