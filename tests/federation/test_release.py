"""A release across sites is the release: the same bytes, one charge a site, whatever fails."""

from pathlib import Path

import numpy as np
import pytest

from canal.errors import FederationError
from canal.features.ensemble import load_ensemble
from canal.features.queries import Queries
from canal.features.store import Release
from canal.federation.aggregate import read_images, run
from canal.learning import checkpoint
from canal.privacy.ledger import Ledger
from canal.release.verification import verify
from federation.local import ask_alone

pytestmark = pytest.mark.usefixtures("small_blocks")


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.mark.parametrize("trust", ["trusted", "secure-sum"])
@pytest.mark.parametrize("preset", ["honest", "paper"])
def test_it_is_byte_for_byte_the_release_of_one_process(
    make_hospitals, make_order, checkpoints, tmp_path, trust, preset
):
    hospitals = make_hospitals(research=True, trust=["trusted", "secure-sum"])
    order = make_order(trust=trust, preset=preset, seed=5)
    made = run(order, hospitals.transport)
    ensemble = load_ensemble(checkpoints.teachers, checkpoints.init)
    queries = Queries.of(read_images(order, checkpoint.describe(checkpoints.init)))
    colluding = order.colluding if trust == "secure-sum" else 0
    plan = ensemble.plan(queries, preset, trust=trust, colluding=colluding, **order.plan)
    alone = ask_alone(tmp_path / "alone", ensemble, queries, plan, 5)
    assert files(made.path) == files(alone.path)
    assert not made.private
    assert all(not hospitals.charges(name) for name in hospitals.names)


@pytest.mark.parametrize("trust", ["trusted", "secure-sum"])
def test_a_private_release_charges_every_site_once(make_hospitals, make_order, trust):
    hospitals = make_hospitals(trust=[trust])
    order = make_order(trust=trust)
    made = run(order, hospitals.transport)
    assert made.private
    assert made.statement["guarantee"]["patient"]["epsilon"] <= 8
    for name in hospitals.names:
        assert len(hospitals.charges(name)) == 1
        checks = {c.what: c for c in verify(made.path, hospitals.ledger(name))}
        assert all(check.passed for check in checks.values()), checks
        assert name in checks["ledger"].detail
    # Asked for again it is found, and nobody is charged.
    before = files(made.path)
    assert files(run(order, hospitals.transport).path) == before
    assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)


def test_the_noise_of_shares_is_as_wide_as_is_stated(make_hospitals, make_order, checkpoints):
    """Against the sum without noise, in units of the stated sigma; chi-square, both tails 1e-9."""
    from scipy import stats

    from canal.attacks.view import mechanism_of, noiseless_rows, released_rows, spreads

    hospitals = make_hospitals()
    made = run(make_order(), hospitals.transport)
    ensemble = load_ensemble(checkpoints.teachers, checkpoints.init)
    order = make_order()
    queries = Queries.of(read_images(order, checkpoint.describe(checkpoints.init)))
    left = released_rows(made) - noiseless_rows(made, ensemble, queries.arrays)
    scores = left / spreads(made)
    low, high = stats.chi2.ppf([1e-9, 1 - 1e-9], scores.size)
    assert low < np.square(scores).sum() < high
    # What is stated is more than what is accounted for: one of the three may tell.
    accounted = mechanism_of(made).sigma
    stated = np.array(made.manifest.mechanism["sigma"])
    np.testing.assert_allclose(stated, np.sqrt(3 / 2) * accounted, rtol=1e-12)


class Faulty:
    """A transport that fails at one question."""

    def __init__(self, inner, at, how):
        self.inner, self.at, self.how, self.count = inner, at, how, 0

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        self.count += 1
        if self.count == self.at:
            return self.how(self.inner, requests)
        return self.inner.ask(requests)


def lost_before(inner, requests):
    raise FederationError("south did not answer")


def lost_after(inner, requests):
    inner.ask(requests)
    raise FederationError("south did not answer")


def one_missing(inner, requests):
    answers = inner.ask(requests)
    answers.pop("south")
    return answers


def half_asked(inner, requests):
    inner.ask({"north": requests[next(iter(requests))]} if "north" in requests else requests)
    raise FederationError("the server died")


def cut_off(inner, requests):
    return {name: answer[:-7] for name, answer in inner.ask(requests).items()}


def changed(inner, requests):
    answers = inner.ask(requests)
    return {n: a[:-40] + bytes([a[-40] ^ 1]) + a[-39:] for n, a in answers.items()}


# Every way to fail at the questions that matter most; the worst way at all of them.
FAULTS = [(lost_after, at) for at in range(1, 13)] + [
    pytest.param(how, at, marks=[pytest.mark.slow] * (at != 10))
    for how in (lost_before, one_missing, half_asked, cut_off, changed)
    for at in (3, 7, 10)  # agree, statistics, features
]


@pytest.mark.parametrize(("how", "at"), FAULTS)
def test_after_a_fault_the_same_release_comes_and_nobody_pays_twice(
    make_hospitals, make_order, how, at
):
    """At every question of a release; then all processes are started anew."""
    hospitals = make_hospitals()
    order = make_order(preset="paper", plan={"epsilon": 8.0, "unit": "patient"})
    finished = True
    try:
        run(order, Faulty(hospitals.transport, at, how))
    except FederationError:
        finished = False
    for name in hospitals.names:
        assert len(hospitals.charges(name)) <= 1
    hospitals.start()
    made = run(order, hospitals.transport)
    assert made.private
    for name in hospitals.names:
        assert len(hospitals.charges(name)) == 1
        assert all(check.passed for check in verify(made.path, hospitals.ledger(name)))
        session = next((hospitals.home(name) / "sessions").iterdir())
        assert (session / "finished").read_text() == made.manifest.digest
        assert not (session / "secret").exists()
        assert not list(session.glob("answer-*"))
    assert not finished or at > 11


def test_the_same_bytes_whether_it_failed_or_not(make_hospitals, make_order, tmp_path):
    """Sites started anew after every block say the same, so that the sum is the same."""
    hospitals = make_hospitals(research=True)
    whole = files(run(make_order("whole", seed=3), hospitals.transport).path)
    again = make_hospitals("again", research=True)
    order = make_order("torn", seed=3)
    for at in range(1, 13):
        again.start()
        try:
            run(order, Faulty(again.transport, at, lost_after))
        except FederationError:
            continue
    again.start()
    assert files(run(order, again.transport).path) == whole


def test_a_site_that_reads_nan_says_zero_and_tells_nobody(make_hospitals, make_order, caplog):
    """Unless all agreed to give up then."""
    well = run(make_order("well", seed=3), make_hospitals("well-off", research=True).transport)

    def broken(images):
        found = real(images).clone()
        found[0] = float("nan")
        return found

    def spoilt(where):
        hospitals = make_hospitals(where, research=True)
        tap = hospitals.sites["south"].cohort.teacher.tap
        nonlocal real
        real, tap.features = tap.features, broken
        return hospitals.transport

    real = None
    made = run(make_order(seed=3), spoilt("broken"))
    assert isinstance(made, Release)
    assert "south returns NaN" in caplog.text
    assert made.statement == well.statement
    gives_up = make_order("gives-up", seed=3, plan={"epsilon": 8.0, "broken": "refuse"})
    with pytest.raises(FederationError, match="south refuses: features 0 could not be made"):
        run(gives_up, spoilt("gives-up-hospitals"))
    assert "plan gives the release up then" in caplog.text


def test_teachers_are_trained_where_there_is_none(make_hospitals, make_order, asked, tmp_path):
    import shutil

    (tmp_path / "canal.toml").write_text("[training]\nsteps = 4\nbatch_size = 4\n")
    hospitals = make_hospitals(
        research=True, images=str(asked), settings=str(tmp_path / "canal.toml")
    )
    for name in hospitals.names:
        shutil.rmtree(hospitals.home(name) / "teacher")
        # Cohorts of their own, though of the same images: other orders, other weights.
        (hospitals.home(name) / "canal.toml").write_text(
            f"[training]\nsteps = 4\nbatch_size = 4\nseed = {hospitals.names.index(name)}\n"
        )
        text = (hospitals.home(name) / "site.toml").read_text()
        (hospitals.home(name) / "site.toml").write_text(
            text.replace(str(tmp_path / "canal.toml"), "canal.toml")
        )
    hospitals.start()
    made = run(make_order(train=True, wait=0.2, seed=1), hospitals.transport)
    assert len(made.ids) == 40
    assert (hospitals.home("north") / "teacher" / "weights.safetensors").is_file()


def test_without_a_budget_nothing_is_made(make_hospitals, make_order):
    hospitals = make_hospitals(epsilon=4.0)
    with pytest.raises(FederationError, match="the patient budget of this site does not"):
        run(make_order(), hospitals.transport)
    assert all(not hospitals.charges(name) for name in hospitals.names)
    for name in hospitals.names:
        Ledger(hospitals.home(name) / "ledger.sqlite").set_budget(
            name, "patient", epsilon=9.0, delta=1e-5
        )
    assert run(make_order(), hospitals.transport).private
