"""A malicious aggregator: too little noise, other terms, anything out of order; all refused."""

import pickle

import numpy as np
import pytest

from canal.errors import FederationError
from canal.federation import remote
from canal.federation.aggregate import run, session
from canal.federation.message import Message
from canal.federation.site import Site
from federation.malicious import PAPER, Malicious, refused, set_in, unpaid

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize(
    "path",
    [("stated", "sigma_if_even"), ("stated", "sigma", "caps"), ("stated", "sigma", "importance")],
)
@pytest.mark.parametrize("factor", [0.5, 0.999999])
def test_noise_that_is_too_little_for_the_epsilon(hospitals, make_order, path, factor):
    """Each site derives the numbers itself."""
    less = set_in(*path, value=lambda sigma: sigma * factor)
    refused(hospitals, make_order(**PAPER), "commit", less, "not what the plan's epsilon needs")
    assert unpaid(hospitals)


def test_a_mechanism_with_less_noise_than_the_plan_has(hospitals, make_order):
    def less(head, arrays):
        head["numbers"]["sigma"][0] *= 0.9

    refused(hospitals, make_order(), "announce", less, "derived other noise")


def consistent(change):
    """A liar who works out the mechanism that follows from the lie."""

    def lie(head, arrays):
        from canal.features.mechanism import TeacherSum
        from canal.features.statistics import Statistics

        change(head["statistics"])
        plan = lie.plan
        told = Statistics.from_json(head["statistics"])
        made = TeacherSum.of(plan.calibrate(told.weights(plan)), told)
        head["numbers"] = made.to_json()

    return lie


@pytest.mark.parametrize(
    ("preset", "change"),
    [
        ("honest", lambda made: made["caps"].update(values=[-1e-6] * 128)),
        ("honest", lambda made: made["caps"].update(values=[1e-6] * 127 + [-1e-6])),
        ("honest", lambda made: made["caps"].update(values=[-0.0] * 128)),
        ("honest", lambda made: made["importance"].update(values=[-1.0] + [1.0] * 127)),
        ("honest", lambda made: made["caps"].update(source="private", sigma=0.0)),
        ("honest", lambda made: made["caps"].update(sigma=1e-3)),
        ("paper", lambda made: made["caps"].update(sigma=0.5 * made["caps"]["sigma"])),
        ("paper", lambda made: made["importance"].update(sigma=0.0)),
        ("paper", lambda made: made["caps"].update(source="public", sigma=0.0)),
    ],
)
def test_statistics_that_nobody_published(hospitals, make_order, change, preset, monkeypatch):
    """A negative cap would not clip; another sigma would be another estimate, or none."""
    from canal.features import job

    lie = consistent(change)
    real = job.make_plan

    def noted(*arguments):
        lie.plan = real(*arguments)
        return lie.plan

    monkeypatch.setattr(job, "make_plan", noted)
    order = make_order(**PAPER) if preset == "paper" else make_order()
    transport = Malicious(hospitals.transport, "announce", lie)
    with pytest.raises(FederationError, match="nobody published these statistics"):
        run(order, transport)
    assert not any(
        Message.from_bytes(a).head.get("step") == "features"
        for answers in transport.heard
        for a in answers.values()
    )


def test_a_plan_that_costs_more_than_its_epsilon_says(hospitals, make_order):
    """The paper's reading of epsilon 8 costs a patient far more; a patient's budget binds."""
    for name in hospitals.names:
        hospitals.ledger(name).set_budget(
            name, "paper", epsilon=100.0, delta=1e-5, conversion="paper"
        )
    order = make_order(preset="paper", plan={"epsilon": 8.0})
    with pytest.raises(FederationError, match="the patient budget"):
        run(order, hospitals.transport)
    assert unpaid(hospitals)


@pytest.mark.parametrize(
    ("choices", "match"),
    [
        ({"seed": 1}, "no part in research"),
        ({"trust": "trusted"}, "takes part in secure-sum"),
        ({"colluding": 0}, "insists on t = 1"),
        ({"plan": {"allocation": "none"}, "trust": "trusted"}, "takes part in secure-sum"),
    ],
)
def test_what_a_site_takes_no_part_in(hospitals, make_order, choices, match):
    with pytest.raises(FederationError, match=match):
        run(make_order(**choices), hospitals.transport)
    assert unpaid(hospitals)


def test_a_release_without_noise(make_hospitals, make_order):
    hospitals = make_hospitals(trust=["trusted"], research=True)
    order = make_order(trust="trusted", plan={"epsilon": 8.0, "allocation": "none"}, seed=1)
    with pytest.raises(FederationError, match="without noise protects nobody"):
        run(order, hospitals.transport)


def test_a_sites_ledger_forbids_research_runs(make_hospitals, make_order):
    """Also where its terms allow them: whoever answers for the patients has the last word."""
    hospitals = make_hospitals(research=True)
    hospitals.ledger("south").forbid("south", ["seeded"])
    with pytest.raises(FederationError, match="south refuses: this site's ledger forbids"):
        run(make_order(seed=1), hospitals.transport)
    hospitals.ledger("south").allow("south", ["seeded"])
    assert not run(make_order(seed=1), hospitals.transport).private


class TestOrder:
    """Every question at its time, or not at all."""

    def ask(self, hospitals, **head):
        known = {"session": "0" * 32}
        return remote.ask(hospitals.transport, Message(known | head))

    @pytest.mark.parametrize("kind", ["announce", "sum", "upload"])
    @pytest.mark.parametrize("step", ["statistics", "features"])
    def test_nothing_before_an_agreement(self, hospitals, kind, step):
        with pytest.raises(FederationError, match="agree first"):
            self.ask(hospitals, kind=kind, step=step, number=0)

    def test_no_features_before_statistics(self, hospitals, make_order):
        order = make_order()

        def skip(head, arrays):
            head.update(kind="sum", step="features", number=0)

        refused(hospitals, order, "announce", skip, "statistics come first")

    def test_no_agreement_before_all_queries_came(self, hospitals, make_order):
        """An aggregator that skips a block, and says that it sent all; nobody pays for that."""

        def lose(head, arrays):
            if head["number"] == 1:
                head["kind"] = "prepare"
                arrays.clear()

        def commit(head, arrays):
            head.update(kind="commit", stated={})

        for change in (lose, commit):
            spy = Malicious(hospitals.transport, "upload", change)
            with pytest.raises(FederationError, match=r"queries from (16|0) on did not"):
                run(make_order(**PAPER), spy)
            assert unpaid(hospitals)
        name = session(make_order(**PAPER))
        with pytest.raises(FederationError, match="agree first"):
            self.ask(hospitals, kind="sum", session=name, step="statistics", number=0)

    def test_a_block_that_is_not_there(self, hospitals, make_order):
        far = set_in("number", value=99)
        refused(hospitals, make_order(), "features", far, "this release has no features 99")

    def test_an_end_without_a_beginning(self, hospitals, make_order):
        made = run(make_order(), hospitals.transport)
        manifest = made.manifest.to_bytes().decode()
        with pytest.raises(FederationError, match="agree first"):
            self.ask(hospitals, kind="finish", manifest=manifest)

    def test_another_manifest_than_was_agreed_to(self, make_hospitals, make_order):
        hospitals = make_hospitals(again=True)
        other = run(make_order("other"), hospitals.transport)
        manifest = other.manifest.to_bytes().decode()

        def exchange(head, arrays):
            head["manifest"] = manifest

        refused(hospitals, make_order(), "finish", exchange, "another statistics|another charge")


class TestMessages:
    """Bytes from anyone: a refusal, never a crash, never something executed."""

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"x" * 100,
            pickle.dumps(print),
            Message({"kind": "handshake"}).to_bytes(),
            Message({"kind": "open", "session": "0" * 32}).to_bytes(),
            Message(
                {"kind": "handshake", "session": "../../etc", "trust": "secure-sum"}
            ).to_bytes(),
            Message({"kind": "commit", "session": "0" * 32, "contract": {}}).to_bytes(),
            Message({"kind": "commit", "session": "0" * 32, "contract": []}).to_bytes(),
            Message({"kind": "upload", "session": "0" * 32, "number": 0}).to_bytes(),
            Message({"kind": "sum", "session": "0" * 32, "step": [], "number": {}}).to_bytes(),
            Message({"kind": "train", "initialisation": "../x"}).to_bytes(),
        ],
    )
    def test_it_is_refused(self, hospitals, content):
        before = sorted(hospitals.folder.rglob("*"))
        answer = Message.from_bytes(hospitals.sites["north"].answer(content))
        assert answer.head["ok"] is False
        left = [path for path in hospitals.folder.rglob("*") if path not in before]
        assert {path.name for path in left} <= {"sessions", "0" * 32, "lock", "keys"}

    def test_every_cut_is_found(self):
        content = Message({"kind": "x"}, {"a": np.arange(5)}).to_bytes()
        for length in range(len(content)):
            with pytest.raises(FederationError):
                Message.from_bytes(content[:length])

    def test_what_fails_inside_says_no_more(self, hospitals, make_order, monkeypatch):
        """An error while private data are read may tell of them; the site's log has it."""

        site = Site.open(hospitals.home("south"))
        real = site.cohort.teacher.tap.features

        def fail(images):
            if images.any():  # not the blank one that only asks for a shape
                raise ValueError("patient Smith")
            return real(images)

        site.cohort.teacher.tap.features = fail
        hospitals.sites["south"] = site
        with pytest.raises(FederationError, match=r"south refuses: features \d could not") as told:
            run(make_order(), hospitals.transport)
        assert "Smith" not in str(told.value)

    def test_files_of_a_site_are_not_named(self, hospitals, make_order):
        weights = hospitals.home("north") / "teacher" / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(FederationError, match="north refuses: it failed") as told:
            run(make_order(), hospitals.transport)
        assert str(hospitals.folder) not in str(told.value)

    @pytest.mark.parametrize("name", ["identity.key", "roster.json", "ledger.sqlite"])
    def test_nor_those_that_are_missing(self, hospitals, make_order, name):
        (hospitals.home("north") / name).unlink()
        with pytest.raises(FederationError, match="north refuses: it failed") as told:
            run(make_order(), hospitals.transport)
        assert str(hospitals.folder) not in str(told.value)
