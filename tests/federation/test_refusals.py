"""A malicious aggregator: whatever it asks for beside one honest release, a site refuses."""

import json
import pickle

import numpy as np
import pytest

from canal.errors import CanalError, FederationError
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


def consistent(change):
    """A liar who works out the mechanism that follows from the lie."""

    def lie(head, arrays):
        from canal.release.mechanism import Mechanism
        from canal.release.statistics import Statistics

        change(head["statistics"])
        plan = lie.plan
        told = Statistics.from_json(head["statistics"])
        made = Mechanism.of(plan.calibrate(told.weights(plan)), told)
        head["mechanism"] = made.to_json()

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
    from canal.federation import aggregate

    lie = consistent(change)
    real = aggregate.make_plan

    def noted(*arguments):
        lie.plan = real(*arguments)
        return lie.plan

    monkeypatch.setattr(aggregate, "make_plan", noted)
    order = make_order(**PAPER) if preset == "paper" else make_order()
    transport = Malicious(hospitals.transport, "publish", lie)
    with pytest.raises(FederationError, match="nobody published these statistics"):
        run(order, transport)
    assert not any(
        Message.from_bytes(a).head.get("kind") == "features"
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
        name = session(make_order(**PAPER))
        with pytest.raises(FederationError, match="did not come yet"):
            self.ask(hospitals, kind="statistics", session=name)

    def test_a_block_that_is_not_there(self, hospitals, make_order):
        far = set_in("block", value=99)
        refused(hospitals, make_order(), "features", far, "no block 99")

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

        site = Site.open(hospitals.home("south"))
        real = site.teacher.tap.features

        def fail(images):
            if images.any():  # not the blank one that only asks for a shape
                raise ValueError("patient Smith")
            return real(images)

        site.teacher.tap.features = fail
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


class TestPayment:
    """Nothing leaves a site that was not paid for, and nobody pays for what another refuses."""

    def test_a_site_killed_while_it_pays_has_agreed_to_nothing(
        self, hospitals, make_order, monkeypatch
    ):
        """The aggregator then goes on as if all had agreed."""
        from canal.federation import payment

        order = make_order()
        spy = Malicious(hospitals.transport)

        def killed(self, *arguments, **more):
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(payment.Ledger, "reserve", killed)
            with pytest.raises(FederationError, match="it failed"):
                run(order, spy)
        assert unpaid(hospitals)
        hospitals.start()
        name = session(order)
        for kind in ("queries", "publish", "statistics", "features"):
            with pytest.raises(FederationError, match="agree first"):
                remote.ask(
                    hospitals.transport,
                    Message({"kind": kind, "session": name, "block": 0, "start": 0}),
                )

    def test_an_agreement_without_a_charge_is_none(self, hospitals, make_order):
        """Whatever is in the journal: the ledger decides."""
        order = make_order()
        spy = Malicious(hospitals.transport)
        stop = {"publish"}

        def ask(requests, real=spy.ask):
            if Message.from_bytes(next(iter(requests.values()))).head["kind"] in stop:
                raise FederationError("stopped")
            return real(requests)

        spy.ask = ask
        with pytest.raises(FederationError, match="stopped"):
            run(order, spy)
        for name in hospitals.names:
            (hospitals.home(name) / "ledger.sqlite").unlink()
            hospitals.ledger(name).set_budget(name, "patient", epsilon=20.0, delta=1e-5)
        hospitals.start()
        name = session(order)
        with pytest.raises(FederationError, match="never paid for"):
            remote.ask(hospitals.transport, Message({"kind": "statistics", "session": name}))

    def test_a_charge_is_not_made_twice_after_a_crash(self, hospitals, make_order, monkeypatch):
        """Paid, and killed before the agreement is written."""
        from canal.federation.journal import Journal

        order = make_order()

        def killed(self, terms):
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "agree", killed)
            with pytest.raises(FederationError, match="it failed"):
                run(order, hospitals.transport)
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)
        hospitals.start()
        assert run(order, hospitals.transport).private
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_nobody_pays_for_what_another_refuses(self, hospitals, make_order):
        hospitals.ledger("south").set_budget("south", "patient", epsilon=4.0, delta=1e-5)
        with pytest.raises(FederationError, match="south refuses: the patient budget"):
            run(make_order(), hospitals.transport)
        assert unpaid(hospitals)
        # In the same place, for less.
        less = make_order(plan={"epsilon": 3.5, "released": 12})
        assert run(less, hospitals.transport).private

    def test_a_unit_that_asks_for_no_budget_of_patients(self, hospitals, make_order):
        plan = {"epsilon": 1000.0, "unit": "image"}
        with pytest.raises(FederationError, match="answer for their patients"):
            run(make_order(preset="paper", plan=plan), hospitals.transport)

    def test_a_ledger_that_does_not_know_the_sites_patients(self, make_hospitals, make_order):
        hospitals = make_hospitals()
        for name in hospitals.names:
            (hospitals.home(name) / "ledger.sqlite").unlink()
            book = hospitals.ledger(name)
            book.set_budget(name, "paper", epsilon=100.0, delta=1e-5, conversion="paper")
        with pytest.raises(FederationError, match="no patient budget"):
            run(make_order(preset="paper", plan={"epsilon": 8.0}), hospitals.transport)

    def test_a_site_killed_while_it_finishes_destroys_its_secrets_later(
        self, hospitals, make_order, monkeypatch
    ):
        from canal.privacy.randomness import Secret

        order = make_order()

        def killed(path):
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Secret, "destroy", staticmethod(killed))
            with pytest.raises(FederationError, match="it failed"):
                run(order, hospitals.transport)
        hospitals.start()
        run(order, hospitals.transport)
        for name in hospitals.names:
            kept = {p.name for p in (hospitals.home(name) / "sessions" / session(order)).iterdir()}
            assert kept == {"agreement.json", "finished", "lock", "member.json"}

    def test_queries_without_labels_are_refused_before_anybody_pays(
        self, hospitals, make_order, asked, tmp_path
    ):
        import shutil

        shutil.copytree(asked / "images", tmp_path / "bare" / "images")
        with pytest.raises(CanalError, match="no query has a label"):
            run(make_order(queries=str(tmp_path / "bare")), hospitals.transport)
        assert unpaid(hospitals)

    def test_an_order_that_waits_longer_is_the_same(self, hospitals, make_order):
        """Stopped while queries are sent, when everyone has paid."""

        def stop(head, arrays):
            raise FederationError("stopped")

        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), Malicious(hospitals.transport, "queries", stop))
        assert run(make_order(wait=99.0), hospitals.transport).private
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_another_order_for_the_same_place_is_refused_once_all_paid(self, hospitals, make_order):
        def stop(head, arrays):
            raise FederationError("stopped")

        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), Malicious(hospitals.transport, "queries", stop))
        with pytest.raises(CanalError, match="holds an unfinished release with another plan"):
            run(make_order(plan={"epsilon": 3.0, "released": 12}), hospitals.transport)
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_a_process_that_slept_through_the_end_answers_no_more(self, make_hospitals, make_order):
        hospitals = make_hospitals(trust=["trusted"])
        spy = Malicious(hospitals.transport)
        old = dict(hospitals.sites)

        def switch(head, arrays):
            hospitals.start()
            spy.inner = hospitals.transport

        spy.kind, spy.change = "finish", switch
        run(make_order(trust="trusted"), spy)
        for requests in spy.sent:
            message = Message.from_bytes(requests["north"])
            if message.head["kind"] in ("publish", "features", "queries"):
                answer = Message.from_bytes(old["north"].answer(requests["north"]))
                assert answer.head["ok"] is False
                assert "finished here" in answer.head["error"]


class TestTeachers:
    """What a site shows of its teacher, and what it takes for one."""

    def test_a_digest_of_the_weights_is_not_shown(self, make_hospitals):
        """Not even to an aggregator that is trusted with features, before they are paid for."""
        hospitals = make_hospitals(trust=["trusted"])
        site = hospitals.sites["north"]
        for research in (False, True):
            question = Message(
                {
                    "kind": "join",
                    "session": str(int(research)) * 32,
                    "trust": "trusted",
                    "research": research,
                }
            )
            answer = site.answer(question.to_bytes())
            assert site.teacher.digest.encode() not in answer
            assert Message.from_bytes(answer).head["claim"][0] == "north"

    def test_a_plan_for_other_features_than_the_teachers(self, hospitals, make_order):
        grid = set_in("terms", "agreement", "plan", "grid", value=[1])
        refused(hospitals, make_order(), "consider", grid, "the teacher here has others")
        assert unpaid(hospitals)

    def test_images_of_another_shape_with_the_same_bytes(self, hospitals, make_order):
        def reshape(head, arrays):
            count = len(arrays["images"])
            for name in ("images", "masks"):
                arrays[name] = np.asarray(arrays[name]).reshape(count, 1, 16, 64)

        refused(hospitals, make_order(), "queries", reshape, "this site's teacher takes")

    def test_the_same_images_with_other_truths(self, hospitals, make_order, asked, tmp_path):
        """Features do not depend on truths: it would be a second view."""
        import shutil

        from PIL import Image

        run(make_order("first"), hospitals.transport)
        shutil.copytree(asked, tmp_path / "inverted")
        for path in (tmp_path / "inverted" / "masks").iterdir():
            Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
        order = make_order("second", queries=str(tmp_path / "inverted"))
        with pytest.raises(FederationError, match="answered in another session"):
            run(order, hospitals.transport)
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_one_image_under_two_names(self, hospitals, make_order, asked, tmp_path):
        """With two truths; refused before anybody pays."""
        import shutil

        shutil.copytree(asked, tmp_path / "twice")
        for part in ("images", "masks"):
            folder = tmp_path / "twice" / part
            shutil.copy(folder / "case-000.png", folder / "case-999.png")
        shutil.copy(
            tmp_path / "twice" / "masks" / "case-001.png",
            tmp_path / "twice" / "masks" / "case-999.png",
        )
        with pytest.raises(FederationError, match="there twice under two names"):
            run(make_order(queries=str(tmp_path / "twice")), hospitals.transport)
        assert unpaid(hospitals)

    def test_finishing_needs_no_teacher(self, hospitals, make_order):
        import shutil

        order = make_order()

        def stop(head, arrays):
            raise FederationError("stopped")

        with pytest.raises(FederationError, match="stopped"):
            run(order, Malicious(hospitals.transport, "finish", stop))
        for name in hospitals.names:
            shutil.rmtree(hospitals.home(name) / "teacher")
        hospitals.start()
        assert run(order, hospitals.transport).private

    def test_an_initialisation_is_what_its_name_says(self, hospitals, checkpoints):
        from canal.federation.aggregate import hand_out
        from canal.models.checkpoint import describe

        hand_out(checkpoints.init, hospitals.transport)
        name = describe(checkpoints.init).initialisation
        kept = hospitals.home("north") / "init" / name / "weights.safetensors"
        before = kept.read_bytes()
        head = {"kind": "initialise", "initialisation": name, "description": "{}"}
        junk = Message(head, {"weights": np.zeros(9, dtype=np.uint8)})
        remote.ask(hospitals.transport, junk)  # what is there stays
        assert kept.read_bytes() == before
        other = Message(head | {"initialisation": "0" * 64}, junk.arrays)
        with pytest.raises(FederationError, match="it failed"):
            remote.ask(hospitals.transport, other)
        assert {p.name for p in kept.parents[1].iterdir()} == {name}
