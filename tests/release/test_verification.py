"""A forger who knows how digests are made; what a reader finds without a ledger."""

import json
from dataclasses import replace

import numpy as np
import pytest

from budgets import just_enough
from canal.errors import ReleaseError
from canal.features.calibration import calibrate
from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan
from canal.features.release import create
from canal.features.statistics import Statistics
from canal.privacy import Lattice
from canal.release.card import render
from canal.release.manifest import CARD, MANIFEST, Manifest
from canal.release.statement import Facts, state
from canal.release.verification import check_statement, verify


@pytest.fixture(scope="module")
def made(tmp_path_factory, ensemble, queries, make_plan):
    """A private release, and the folder's files as they were."""
    from canal.privacy import Ledger

    folder = tmp_path_factory.mktemp("forged")
    ledger, plan = Ledger(folder / "ledger"), make_plan()
    just_enough(ledger, plan, ensemble.cohorts)
    release = create(folder / "release", ensemble, queries, plan, ledger=ledger)
    return release, {path: path.read_bytes() for path in release.path.iterdir()}


@pytest.fixture
def forge(made):
    """Write another manifest, with its digest and card as they should be; tell what fails."""
    release, files = made

    def write(manifest):
        (release.path / MANIFEST).write_bytes(manifest.to_bytes())
        (release.path / CARD).write_text(render(manifest))
        return {check.what: check.detail for check in verify(release.path) if check.passed is False}

    yield write
    for path, content in files.items():
        path.write_bytes(content)


def told_otherwise(manifest: Manifest, **choices) -> Manifest:
    """The same release under another plan, every number that follows from it put right."""
    plan = Plan.from_json(manifest.plan | choices)
    statistics = Statistics.from_json(manifest.statistics)
    calibrated = calibrate(plan, statistics.weights(plan))
    mechanism = TeacherSum.of(calibrated, statistics)
    facts = Facts.of(plan, manifest.noise, manifest.participants["cohorts"])
    said = json.loads(json.dumps(state(calibrated, facts)))
    return replace(manifest, plan=plan.to_json(), mechanism=mechanism.to_json(), statement=said)


def test_the_forger_is_good_at_it(made, forge):
    """Nothing changed: everything holds, so what fails below fails for what was changed."""
    assert forge(told_otherwise(made[0].manifest)) == {}


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_noise_that_was_left_out_or_made_less(
    tmp_path, ensemble, queries, make_plan, monkeypatch, part
):
    """The manifest says what was planned; the features vary too little for that."""
    perturb = Lattice.perturb

    def quieter(self, total, sigma, stream, **options):
        if not part and total.ndim == 3:
            return total
        return perturb(self, total, np.asarray(sigma) * (part or 1), stream, **options)

    plan = make_plan(allocation="uniform")
    monkeypatch.setattr(Lattice, "perturb", quieter)
    create(tmp_path / "r", ensemble, queries, plan, seed=1)
    failed = {c.what: c.detail for c in verify(tmp_path / "r") if c.passed is False}
    assert "varies less" in failed.pop("noise")
    # Without noise at all two queries are also closer than noise lets them be.
    assert set(failed) <= {"repeats"}


def test_true_noise_is_never_called_too_quiet(tmp_path, ensemble, queries, make_plan):
    """False-alarm rate 1e-9 each; features that are zero are the worst case, and none are here."""
    for seed in range(20):
        out = tmp_path / f"r{seed}"
        create(out, ensemble, queries, make_plan(epsilon=0.01), seed=seed)
        assert {c.what: c.passed for c in verify(out)}["noise"]


def test_charges_that_are_not_everyones(made, forge):
    manifest = made[0].manifest
    due = manifest.ledger["charges"]
    for charges in ([], due[:1], [entry for entry in due if entry["unit"] == "paper"]):
        found = forge(replace(manifest, ledger=manifest.ledger | {"charges": charges}))
        assert "not everyone's" in found["statement"]


def test_charges_are_held_against_the_statement_too(made, forge, monkeypatch):
    """Where the code that works charges out is wrong, it is wrong when it checks them."""
    monkeypatch.setattr("canal.release.verification.covers", lambda *_: True)
    manifest = made[0].manifest
    due = manifest.ledger["charges"]
    assert forge(manifest) == {}
    half = [each | {"rho": each["rho"] * (1 - 1e-6)} for each in due]
    one_free = [each for each in due if each["cohort"] != "west"]
    for charges in (half, one_free, []):
        found = forge(replace(manifest, ledger=manifest.ledger | {"charges": charges}))
        assert "was charged less" in found["statement"]


@pytest.mark.parametrize(
    "source", ["atmospheric noise, certified", "seeded, not private", "none", ""]
)
def test_noise_of_another_origin(made, forge, source):
    noise = made[0].manifest.noise | {"source": source}
    assert "statement" in forge(replace(made[0].manifest, noise=noise))


@pytest.mark.parametrize(
    ("choices", "cohorts"),
    [
        ({"releases": 5}, None),
        ({"unit": "image"}, None),
        ({}, ["north", "north", "west"]),
        ({}, ["north", "south"]),
    ],
)
def test_plans_that_nobody_releases(made, forge, choices, cohorts):
    manifest = told_otherwise(made[0].manifest, **choices)
    if cohorts:
        manifest = replace(manifest, participants=manifest.participants | {"cohorts": cohorts})
    assert "statement" in forge(manifest)


def test_whatever_stands_where_a_number_should_be(made):
    """Only our own error, for any value in any place of the manifest."""
    rng = np.random.default_rng(5)
    strange = [None, "x", -1, 0, 1e400, [], {}, [[]], True, 10**400]
    manifest = made[0].manifest
    for entry in ("plan", "statistics", "mechanism", "participants", "noise", "ledger"):
        values = getattr(manifest, entry)
        for key in values:
            odd = strange[rng.integers(len(strange))]
            # Names that nothing is derived from; the digest and the ledger stand for those.
            if odd == values[key] or key in ("initialisation", "tap", "key"):
                continue
            with pytest.raises(ReleaseError):
                check_statement(replace(manifest, **{entry: values | {key: odd}}))
            rest = {name: value for name, value in values.items() if name != key}
            with pytest.raises(ReleaseError):
                check_statement(replace(manifest, **{entry: rest}))
