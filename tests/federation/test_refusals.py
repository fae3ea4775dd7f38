"""A malicious aggregator: whatever it asks for beside one honest release, a site refuses."""

import json
import pickle

import numpy as np
import pytest

from canal.errors import FederationError
from canal.federation import remote
from canal.federation.aggregate import run, session
from canal.federation.identity import Identity
from canal.federation.masks import Keys
from canal.federation.message import Message
from canal.federation.site import Site
from canal.federation.terms import member


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Three blocks for forty queries."""
    monkeypatch.setattr(remote, "BLOCK", 16)


class Malicious:
    """A transport that changes the questions of one kind, and remembers all."""

    def __init__(self, inner, kind="", change=lambda head, arrays: None):
        self.inner, self.kind, self.change = inner, kind, change
        self.sent, self.heard = [], []

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        changed = {}
        for name, request in requests.items():
            message = Message.from_bytes(request)
            if message.head["kind"] == self.kind:
                head, arrays = json.loads(json.dumps(message.head)), dict(message.arrays)
                self.change(head, arrays)
                request = Message(head, arrays).to_bytes()
            changed[name] = request
        answers = self.inner.ask(changed)
        self.sent.append(changed)
        self.heard.append(answers)
        return answers


def refused(hospitals, order, kind, change, match):
    with pytest.raises(FederationError, match=match):
        run(order, Malicious(hospitals.transport, kind, change))


def unpaid(hospitals):
    return not any(hospitals.charges(name) for name in hospitals.names)


def set_in(*path, value):
    def change(head, arrays):
        at = head
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value(at[path[-1]]) if callable(value) else value

    return change


PAPER = {"preset": "paper", "plan": {"epsilon": 8.0, "unit": "patient"}}


@pytest.mark.parametrize(
    "path",
    [("stated", "sigma_if_even"), ("stated", "sigma", "caps"), ("stated", "sigma", "importance")],
)
@pytest.mark.parametrize("factor", [0.5, 0.999999])
def test_noise_that_is_too_little_for_the_epsilon(hospitals, make_order, path, factor):
    """Each site derives the numbers itself."""
    less = set_in(*path, value=lambda sigma: sigma * factor)
    refused(hospitals, make_order(**PAPER), "agree", less, "not what the plan's epsilon needs")
    assert unpaid(hospitals)


def test_a_mechanism_with_less_noise_than_the_plan_has(hospitals, make_order):
    def less(head, arrays):
        head["mechanism"]["sigma"][0] *= 0.9

    refused(hospitals, make_order(), "publish", less, "derived other noise")


def test_statistics_of_less_noise(hospitals, make_order):
    """They would be believed more than they deserve; the mechanism follows from them."""

    def less(head, arrays):
        head["statistics"]["caps"]["sigma"] *= 0.5

    refused(hospitals, make_order(**PAPER), "publish", less, "derived other noise")


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


class TestRosters:
    """A site knows the others' certificates beforehand."""

    def forged(self, tmp_path, name="south", identity=None):
        """An entry for a site, with keys that the aggregator knows."""
        identity = identity or Identity.create(tmp_path / "forged", name)

        def change(head, arrays):
            terms = head["terms"]
            public = Keys.generate().public
            terms["roster"][name] = member(name, terms["session"], public, identity)

        return change

    def test_another_certificate_under_the_same_name(self, hospitals, make_order, tmp_path):
        refused(
            hospitals, make_order(), "agree", self.forged(tmp_path), "'south' is unknown here, or"
        )
        assert unpaid(hospitals)

    def test_another_key_with_the_right_certificate(self, hospitals, make_order, tmp_path):
        """The signature is of another identity."""
        forger = Identity.create(tmp_path / "forger", "south")
        real = hospitals.sites["south"].identity
        identity = Identity(real.certificate, forger.key)
        change = self.forged(tmp_path, identity=identity)
        refused(hospitals, make_order(), "agree", change, "does not belong to its certificate")

    def test_a_key_of_another_session(self, hospitals, make_order):
        """Signed by the right site, once, for something else."""
        real = hospitals.sites["south"].identity

        def change(head, arrays):
            public = Keys.generate().public
            head["terms"]["roster"]["south"] = member("south", "f" * 32, public, real)

        refused(hospitals, make_order(), "agree", change, "does not belong to its certificate")

    def test_a_site_that_nobody_knows(self, hospitals, make_order, tmp_path):
        stranger = Identity.create(tmp_path / "stranger", "stranger")

        def change(head, arrays):
            terms = head["terms"]
            public = Keys.generate().public
            terms["roster"]["stranger"] = member("stranger", terms["session"], public, stranger)
            terms["agreement"]["cohorts"].append("stranger")
            terms["agreement"]["plan"]["participants"]["teachers"] += 1

        refused(hospitals, make_order(), "agree", change, "'stranger' is unknown here")

    def test_fewer_sites_than_the_plan_has(self, hospitals, make_order):
        def change(head, arrays):
            del head["terms"]["roster"]["south"]

        refused(hospitals, make_order(), "agree", change, "not that of the cohorts")

    def test_a_site_whose_own_key_was_exchanged(self, hospitals, make_order):
        """By one that it signed itself, in the same session; it has another now."""
        real = hospitals.sites["north"].identity

        def change(head, arrays):
            terms = head["terms"]
            public = Keys.generate().public
            terms["roster"]["north"] = member("north", terms["session"], public, real)

        refused(hospitals, make_order(), "agree", change, "another key for 'north' than its own")


class TestTwoViews:
    """One noisy view of a query, and no second one."""

    def test_another_content_under_the_same_name(self, hospitals, make_order):
        def repaint(head, arrays):
            arrays["images"] = np.asarray(arrays["images"]) ^ 255

        refused(hospitals, make_order(), "queries", repaint, "has other content than was agreed")

    def test_the_same_queries_in_another_session(self, hospitals, make_order):
        run(make_order("first"), hospitals.transport)
        with pytest.raises(FederationError, match="40 of these queries were answered in another"):
            run(make_order("second"), hospitals.transport)
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_a_site_may_allow_it_and_is_charged(self, make_hospitals, make_order):
        hospitals = make_hospitals(again=True, epsilon=13.0)
        first = run(make_order("first"), hospitals.transport)
        second = run(make_order("second"), hospitals.transport)
        assert all(len(hospitals.charges(name)) == 2 for name in hospitals.names)
        apart = first.integers(first.ids[0]) != second.integers(first.ids[0])
        assert apart.mean() > 0.9  # noise of its own
        with pytest.raises(FederationError, match="does not cover this release"):
            run(make_order("third"), hospitals.transport)

    def test_nothing_more_in_a_session_that_is_finished(self, hospitals, make_order):
        spy = Malicious(hospitals.transport)
        run(make_order(), spy)
        for kind in ("publish", "features", "queries"):
            with pytest.raises(FederationError, match="agree first"):
                self._again(spy, kind, lambda head, arrays: None)
        with pytest.raises(FederationError, match="is finished here"):
            self._again(spy, "agree", lambda head, arrays: None)

    @staticmethod
    def _again(transport, kind, change):
        for requests in transport.sent:
            request = next(iter(requests.values()))
            message = Message.from_bytes(request)
            if message.head["kind"] == kind:
                head = json.loads(json.dumps(message.head))
                change(head, {})
                remote.ask(transport.inner, Message(head, message.arrays))

    @pytest.fixture
    def stopped(self, hospitals, make_order):
        """A release that stops before its last block, and all that was said until then."""
        spy = Malicious(hospitals.transport)
        real = spy.ask

        def ask(requests):
            head = Message.from_bytes(next(iter(requests.values()))).head
            if head["kind"] == "features" and head["block"] == 2:
                raise FederationError("stopped")
            return real(requests)

        spy.ask = ask
        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), spy)
        return spy

    def test_other_caps_for_a_block_that_was_answered(self, hospitals, stopped):
        change = set_in("statistics", "caps", "values", 0, value=9.0)
        with pytest.raises(FederationError, match="other statistics were published"):
            self._again(stopped, "publish", change)

    def test_other_terms_while_it_is_under_way(self, hospitals, stopped):
        for change in (
            set_in("terms", "key", value="another"),
            set_in("terms", "block", value=32),
            set_in("terms", "agreement", "plan", "epsilon", value=7.0),
        ):
            with pytest.raises(FederationError, match="other terms were agreed to"):
                self._again(stopped, "agree", change)

    def test_another_request_under_the_same_number(self, hospitals, stopped):
        """Whatever a message says beside its number: it is answered once."""
        with pytest.raises(FederationError, match="answered before, to another request"):
            self._again(stopped, "features", lambda head, arrays: head.update(please="again"))

    def test_the_same_request_has_the_same_answer(self, hospitals, stopped):
        """Replayed, in any order, by a site that was started anew: the same bytes."""
        hospitals.start()
        pairs = [
            (site, request, answers[site])
            for requests, answers in zip(stopped.sent, stopped.heard, strict=True)
            for site, request in requests.items()
            if Message.from_bytes(request).head["kind"] in ("statistics", "features")
        ]
        assert len(pairs) == 6
        for site, request, answer in reversed(pairs):
            assert hospitals.sites[site].answer(request) == answer

    def test_a_key_that_was_charged_before(self, make_hospitals, make_order):
        """A second release under the first one's charge would be free."""
        hospitals = make_hospitals(again=True)
        first = run(make_order("first"), hospitals.transport)
        key = first.manifest.ledger["key"]
        change = set_in("terms", "key", value=key)
        refused(hospitals, make_order("second"), "agree", change, "this key was charged before")
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_a_journal_that_was_removed_does_not_make_it_free(self, hospitals, stopped):
        import shutil

        for name in hospitals.names:
            shutil.rmtree(hospitals.home(name) / "sessions")
        hospitals.start()
        join, agree, *_ = (next(iter(requests.values())) for requests in stopped.sent)
        remote.ask(hospitals.transport, Message.from_bytes(join))
        with pytest.raises(FederationError, match="another key for 'north' than its own"):
            remote.ask(hospitals.transport, Message.from_bytes(agree))


class TestOrder:
    """Every question at its time, or not at all."""

    def ask(self, hospitals, **head):
        known = {"session": "0" * 32}
        return remote.ask(hospitals.transport, Message(known | head))

    @pytest.mark.parametrize("kind", ["statistics", "publish", "features", "queries"])
    def test_nothing_before_an_agreement(self, hospitals, kind):
        with pytest.raises(FederationError, match="agree first"):
            self.ask(hospitals, kind=kind, block=0, start=0)

    def test_no_features_before_statistics(self, hospitals, make_order):
        order = make_order()

        def skip(head, arrays):
            head.update(kind="features", block=0)

        refused(hospitals, order, "publish", skip, "come after the statistics")

    def test_no_answer_before_all_queries_came(self, hospitals, make_order):
        def lose(head, arrays):
            head.update(kind="train", initialisation="x")

        with pytest.raises(FederationError):
            run(make_order(**PAPER), Malicious(hospitals.transport, "queries", lose))
        name = session(make_order().path(make_order().out))
        with pytest.raises(FederationError, match="did not come yet"):
            self.ask(hospitals, kind="statistics", session=name)

    def test_a_block_that_is_not_there(self, hospitals, make_order):
        far = set_in("block", value=99)
        refused(hospitals, make_order(), "features", far, "no block 99")

    def test_an_end_without_a_beginning(self, hospitals, make_order):
        made = run(make_order(), hospitals.transport)
        manifest = made.manifest.to_bytes().decode()
        with pytest.raises(FederationError, match="nothing was agreed to"):
            self.ask(hospitals, kind="finish", manifest=manifest)

    def test_another_manifest_than_was_agreed_to(self, make_hospitals, make_order):
        hospitals = make_hospitals(again=True)
        other = run(make_order("other"), hospitals.transport)
        manifest = other.manifest.to_bytes().decode()

        def exchange(head, arrays):
            head["manifest"] = manifest

        refused(hospitals, make_order(), "finish", exchange, "another charge than was made here")


class TestMessages:
    """Bytes from anyone: a refusal, never a crash, never something executed."""

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"x" * 100,
            pickle.dumps(print),
            Message({"kind": "join"}).to_bytes(),
            Message({"kind": "open", "session": "0" * 32}).to_bytes(),
            Message({"kind": "join", "session": "../../etc", "trust": "secure-sum"}).to_bytes(),
            Message({"kind": "agree", "session": "0" * 32, "terms": {}}).to_bytes(),
            Message({"kind": "agree", "session": "0" * 32, "terms": []}).to_bytes(),
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

        def fail(self, images):
            raise ValueError("patient Smith")

        def broken(home):
            site = Site.open(home)
            site.teacher.tap.features = lambda images: fail(site, images)
            return site

        hospitals.sites["south"] = broken(hospitals.home("south"))
        with pytest.raises(FederationError, match=r"south refuses: features \d could not") as told:
            run(make_order(), hospitals.transport)
        assert "Smith" not in str(told.value)
