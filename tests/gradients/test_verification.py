"""A release of adapters whose meaning is changed, every digest computed anew, the card too.

What follows from the plan is found by whoever has the folder; the rest by whoever has the ledger,
which knows the digest of what was published.
"""

import re
from dataclasses import asdict

import numpy as np
import pytest

from canal.errors import ReleaseError
from canal.gradients.mechanism import PatientSum
from canal.gradients.plan import AdapterPlan
from canal.gradients.store import AdapterRelease
from canal.privacy import Ledger, Secret, rounded_gaussian
from canal.privacy.randomness import Stream
from canal.release.charges import charges
from canal.release.statement import Facts, state
from canal.release.verification import account, check_statement, verify
from gradients.charged import COHORTS, Charged


def derived_anew(content):
    """Everything that follows from the plan, as an honest release would say it."""
    calibrated = AdapterPlan.from_json(content["plan"]).calibrate(content["statistics"]["weights"])
    facts = Facts.of(calibrated.plan, content["noise"], content["participants"]["cohorts"])
    bounds = np.array(content["statistics"]["bounds"])
    return content | {
        "mechanism": PatientSum.numbers(calibrated, bounds),
        "statement": state(calibrated, facts),
    }


def test_as_it_was_made_it_passes(victim):
    assert victim.failed() == []
    assert victim.failed(ledger=False) == []
    checks = {check.what: check for check in verify(victim.folder)}
    names = ["manifest", "key", "files", "statement", "rounds", "noise", "repeats", "record"]
    assert list(checks) == [*names, "card", "ledger"]
    assert checks["ledger"].passed is None
    assert "not looked at" in checks["ledger"].detail


def scaled(factor, *path):
    """Change one number of a manifest."""

    def change(content):
        *way, last = path
        for name in way:
            content = content[name]
        content[last] = (
            [value * factor for value in content[last]]
            if isinstance(content[last], list)
            else type(content[last])(content[last] * factor)
        )

    return change


def put(value, *path):
    """Put another value where one was."""

    def change(content):
        *way, last = path
        for name in way:
            content = content[name]
        content[last] = value

    return change


# What does not follow from the rest: found by anyone who has the folder.
CONTRADICTIONS = {
    "epsilon that was asked for": scaled(0.5, "plan", "epsilon"),
    "epsilon, a little": scaled(1 - 1e-6, "plan", "epsilon"),
    "epsilon that is promised": scaled(0.9, "statement", "guarantee", "membership", "epsilon"),
    "epsilon where one is replaced": scaled(0.9, "statement", "guarantee", "patient", "epsilon"),
    "rho": scaled(0.9, "statement", "guarantee", "membership", "rho"),
    "delta": scaled(10, "plan", "delta"),
    "delta of the statement": scaled(0.1, "statement", "delta"),
    "unit": put("patient", "statement", "unit"),
    "relation": put("replace", "plan", "relation"),
    "conversion": put("paper", "plan", "conversion"),
    "allocation": put("ellipsoid", "plan", "allocation"),
    "no noise at all": put("none", "plan", "allocation"),
    "share of the count": scaled(0.5, "plan", "count"),
    "sigma": scaled(2, "mechanism", "sigma"),
    "sigma, a little": scaled(1 + 1e-6, "mechanism", "sigma"),
    "bounds of the mechanism": scaled(2, "mechanism", "bounds"),
    "bounds of the public numbers": scaled(2, "statistics", "bounds"),
    "a bound too many": put([1.0, 1.0], "statistics", "bounds"),
    "a bound of nothing": put([0.0], "statistics", "bounds"),
    "no weights": put([], "statistics", "weights"),
    "a weight below zero": put([-1.0], "statistics", "weights"),
    "a scale that is none": put([None], "statistics", "scales"),
    "no length": put(0.0, "statistics", "length"),
    "lattice": scaled(2, "mechanism", "step"),
    "noise of the count": scaled(2, "mechanism", "count_sigma"),
    "patients below one": put(0.5, "statistics", "patients"),
    "rounds of the plan": put(4, "plan", "rounds"),
    "parameters of the plan": put(100, "plan", "parameters"),
    "sites": put(3, "plan", "sites"),
    "a cohort twice": put(["dermoscopy", "dermoscopy"], "participants", "cohorts"),
    "another cohort": put(["dermoscopy", "elsewhere"], "participants", "cohorts"),
    "source of the noise": put("dice", "noise", "source"),
    "sampler": put("dice", "noise", "sampler"),
    "claim to be private": put(False, "private"),
    "absence of a charge": put(None, "ledger"),
    "a smaller total": scaled(0.99, "ledger", "totals", 0, "epsilon_spent"),
    "a smaller budget": scaled(0.9, "ledger", "totals", 0, "epsilon_budget"),
    "a cohort without a total": lambda content: content["ledger"]["totals"].pop(),
    "charges, too little": lambda content: scaled(0.99, "ledger", "charges", 0, "rho")(content),
    "charges, too few draws": lambda content: put(1, "ledger", "charges", 3, "draws")(content),
    "charges, somebody missing": lambda content: content["ledger"]["charges"].pop(),
    "a sentence of the statement": put(["Everyone."], "statement", "protected"),
    "an assumption less": lambda content: content["statement"]["assumptions"].pop(),
    "a row less": lambda content: content["rows"].popitem(),
    "a row twice": put([0, 0], "rows", "round 1"),
    "another kind": put("features", "kind"),
    "momentum": put(1.5, "statistics", "update", "momentum"),
    "digest of a shard": put("0" * 64, "shards", 0, "sha256"),
    "fast digest of a shard": put("0" * 32, "shards", 0, "xxh3_128"),
    "rows of a shard": put(2, "shards", 0, "rows"),
    "file of a shard": put("../rounds-00000.safetensors", "shards", 0, "file"),
}
# What somebody could have chosen as well: found by whoever has the ledger.
CHOICES = {
    "public numbers": lambda content: (
        scaled(2, "statistics", "bounds")(content),
        scaled(2, "mechanism", "bounds")(content),
    ),
    "scales": scaled(2, "statistics", "scales"),
    "length": scaled(2, "statistics", "length"),
    "step of the update": scaled(2, "statistics", "update", "step"),
    "patients as they were counted": scaled(1.1, "statistics", "patients"),
    "initialisation": put("0" * 64, "participants", "initialisation"),
    "views": put(3, "participants", "views"),
    "adapter": put(["norms"], "plan", "adapter", "parts"),
    "software": put("canal 0.0", "software"),
    "key of the charge": put("0" * 64, "ledger", "key"),
    "a head of another ledger": put("0" * 64, "ledger", "head", "after"),
    "a head that was later": put("0" * 64, "ledger", "head", "before"),
    "a larger budget": scaled(2, "ledger", "totals", 0, "epsilon_budget"),
    "charges, too much": lambda content: scaled(1.01, "ledger", "charges", 0, "rho")(content),
    "order of the rounds": lambda content: content["shards"].reverse(),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_does_not_follow_is_found_by_anyone(name, victim):
    content = victim.content()
    CONTRADICTIONS[name](content)
    assert content != victim.content()
    victim.forge(content)
    assert victim.failed(ledger=False)
    assert victim.failed()


@pytest.mark.parametrize("name", CHOICES)
def test_what_could_have_been_chosen_is_found_with_the_ledger(name, victim):
    content = victim.content()
    CHOICES[name](content)
    assert content != victim.content()
    victim.forge(content)
    assert "ledger" in victim.failed()


@pytest.mark.parametrize("factor", [0.3, 0.8, 0.999])
def test_a_smaller_epsilon_with_everything_derived_anew(factor, victim):
    """Quieter data than the promise: by its energy where it is much, else by the ledger."""
    content = victim.content()
    content["plan"]["epsilon"] *= factor
    victim.forge(derived_anew(content))
    assert check_statement(AdapterRelease.open(victim.folder).manifest)
    assert "ledger" in victim.failed()
    found = victim.failed(ledger=False)
    # With far less than is promised, two rounds are also closer than their noise lets them be.
    assert found[:1] == (["noise"] if factor < 0.9 else [])
    assert found[1:] in ([], ["repeats"])


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8])
def test_quieter_noise_is_heard(factor, victim):
    """Sums with less noise than is stated, in files that are well made: without the ledger."""
    content, release = victim.content(), AdapterRelease.open(victim.folder)
    calibrated = release.plan.calibrate(release.manifest.statistics["weights"])
    std = float(calibrated.sigma[0]) / calibrated.lattice.step
    quiet = rounded_gaussian(
        max(1.0, factor * std), (release.plan.parameters,), Stream(Secret.seeded(8).key(b"quiet"))
    )
    victim.rewrite(content, 1, quiet.astype(np.int32))
    victim.forge(content)
    assert victim.failed(ledger=False) == ["noise"]
    assert victim.failed() == ["noise", "ledger"]


def rewritten(victim, change):
    """What is found of other sums; `change` gets those of all rounds, over the deviation."""
    content, release = victim.content(), AdapterRelease.open(victim.folder)
    calibrated = release.plan.calibrate(release.manifest.statistics["weights"])
    std = float(calibrated.sigma[0]) / calibrated.lattice.step
    rows = change(np.stack([release.sums(number) / std for number in range(len(release))]))
    for number, row in enumerate(rows):
        victim.rewrite(content, number, np.rint(row * std).astype(np.int32))
    victim.forge(content)
    return {c.what: c.detail for c in verify(victim.folder) if c.passed is False}


def test_sums_that_are_only_written_again_pass(victim):
    assert rewritten(victim, lambda rows: rows) == {}


@pytest.mark.parametrize("sign", [1, -1])
def test_noise_of_an_earlier_round_in_a_later_one(sign, victim):
    found = rewritten(victim, lambda rows: np.stack([rows[0], rows[1], sign * rows[0]]))
    assert "round 0 and round 2 are closer" in found["repeats"]
    # Nothing is left of the later round where earlier ones did not point.
    assert found["noise"].startswith("round 2 varies less")


def test_noise_that_is_wider_than_any_patients_could_make_it(victim):
    found = rewritten(victim, lambda rows: rows * np.array([1, 1, 1.5])[:, None])
    assert set(found) == {"noise"}
    assert found["noise"].startswith("round 2 varies more")


def test_some_coordinates_without_noise(victim):
    """Nothing moves them, so that they are zero: the others of the round vary enough."""

    def quiet(rows):
        rows[1, 20:30] = 0
        return rows

    assert "10 zeros among" in rewritten(victim, quiet)["noise"]


def test_what_would_be_seen_of_a_round_is_said(victim):
    said = {check.what: check.detail for check in verify(victim.folder)}["noise"]
    seen = float(re.search(r"a round at ([\d.]+) of its deviation", said)[1])
    assert 0.75 < seen < 1
    release = AdapterRelease.open(victim.folder)
    rng = np.random.default_rng(0)

    def quieter(rows):
        rows[2] = rng.standard_normal(release.plan.coordinates) * seen
        return rows

    assert rewritten(victim, quieter)["noise"].startswith("round 2 varies less")


def test_honest_noise_of_other_rounds_is_not_found_to_be_quiet(victim):
    """The control of the control: as loud as stated, ten times."""
    content, release = victim.content(), AdapterRelease.open(victim.folder)
    calibrated = release.plan.calibrate(release.manifest.statistics["weights"])
    std = float(calibrated.sigma[0]) / calibrated.lattice.step
    for number in range(10):
        stream = Stream(Secret.seeded(number).key(b"loud"))
        loud = rounded_gaussian(std, (release.plan.parameters,), stream)
        victim.rewrite(content, 1, loud.astype(np.int32))
        victim.forge(content)
        assert victim.failed(ledger=False) == []


def test_a_round_that_is_gone_with_all_traces(victim):
    """Its file, its entry, its row: the plan still says how many there were."""
    content = victim.content()
    (victim.folder / content["shards"].pop()["file"]).unlink()
    content["rows"].popitem()
    victim.forge(content)
    assert victim.failed(ledger=False) == ["rounds"]


@pytest.mark.parametrize("change", [1, -1, 10**6])
def test_another_integer_in_a_well_made_file(change, victim):
    content, release = victim.content(), AdapterRelease.open(victim.folder)
    integers = np.array(release.sums(2))
    integers[5] += change
    victim.rewrite(content, 2, integers)
    victim.forge(content)
    assert victim.failed() == ["ledger"]


def test_a_research_run_is_not_passed_off_as_private(make_release, tmp_path):
    """Every promise made, every digest computed anew, charges invented: the files still warn."""
    release = make_release(tmp_path / "release", seed=1)
    forger = Charged(release.path, None)
    content = forger.content()
    content["noise"]["source"] = Secret(b"x" * 32, private=True).source
    due = [asdict(each) for each in charges(release.plan.calibrate(), COHORTS)]
    ledger = {"key": "0" * 64, "charges": due, "head": None, "totals": []}
    forger.forge(derived_anew(content | {"private": True, "ledger": ledger}))
    assert forger.failed(ledger=False) == ["rounds"]


def test_a_private_release_is_not_passed_off_as_research(victim):
    """Then it would have cost nothing."""
    content = victim.content() | {"private": False, "ledger": None}
    content["noise"]["source"] = Secret.seeded(0).source
    victim.forge(derived_anew(content))
    assert victim.failed(ledger=False) == ["rounds"]


def test_another_ledger_knows_nothing_of_it(victim, tmp_path):
    other = Ledger(tmp_path / "other.sqlite")
    other.set_budget(COHORTS, "membership", epsilon=8.0, delta=1e-5)
    failed = [check for check in verify(victim.folder, other) if check.passed is False]
    assert [check.what for check in failed] == ["ledger"]
    assert "the head on the card" in failed[0].detail


def test_an_account_at_another_delta(victim):
    release = AdapterRelease.open(victim.folder)
    made = release.plan.calibrate(release.manifest.statistics["weights"])
    price = account(release, delta=1e-7)
    assert price["delta"] == 1e-7
    assert price["units"]["membership"]["epsilon"] == pytest.approx(
        made.guarantee.epsilon(1e-7, "membership")
    )
    assert price["units"]["membership"]["shares"] == pytest.approx({"rounds": 0.95, "count": 0.05})
    # Moved twice as far, the rounds cost four times as much; the number of patients does not.
    assert price["units"]["patient"]["shares"]["count"] == pytest.approx(0.05 / (4 * 0.95 + 0.05))


def test_a_forged_promise_is_not_priced(victim):
    content = victim.content()
    content["statement"]["guarantee"]["membership"]["epsilon"] = 0.1
    victim.forge(content)
    with pytest.raises(ReleaseError, match="statement does not follow"):
        account(AdapterRelease.open(victim.folder))
