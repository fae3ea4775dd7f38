"""Payment: nothing leaves a site unpaid, nobody pays for what another refuses."""

import shutil

import pytest

from canal.data import overlap
from canal.errors import CanalError, FederationError
from canal.federation import remote
from canal.federation.aggregate import run, session
from canal.federation.message import Message
from canal.privacy import Charge
from federation.malicious import Malicious, unpaid

pytestmark = pytest.mark.usefixtures("small_blocks")


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
        for kind, step in (("announce", ""), ("sum", "statistics"), ("sum", "features")):
            head = {"kind": kind, "session": name, "step": step, "number": 0}
            with pytest.raises(FederationError, match="agree first"):
                remote.ask(hospitals.transport, Message(head))

    def test_an_agreement_without_a_charge_is_none(self, hospitals, make_order):
        """Whatever is in the journal: the ledger decides."""
        order = make_order()
        spy = Malicious(hospitals.transport)
        stop = {"announce"}

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
        head = {"kind": "sum", "session": name, "step": "features", "number": 0}
        with pytest.raises(FederationError, match="never paid for"):
            remote.ask(hospitals.transport, Message(head))

    def test_a_charge_is_not_made_twice_after_a_crash(self, hospitals, make_order, monkeypatch):
        """Paid, and killed before the agreement is written."""
        from canal.federation.journal import Journal

        order = make_order()

        def killed(self, contract, items):
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
            run(make_order(preset="paper", plan=plan, images_per_person=1), hospitals.transport)

    def test_a_ledger_that_does_not_know_the_sites_patients(self, make_hospitals, make_order):
        hospitals = make_hospitals()
        for name in hospitals.names:
            (hospitals.home(name) / "ledger.sqlite").unlink()
            book = hospitals.ledger(name)
            book.set_budget(name, "paper", epsilon=100.0, delta=1e-5, conversion="paper")
        with pytest.raises(FederationError, match="no patient budget"):
            run(make_order(preset="paper", plan={"epsilon": 8.0}), hospitals.transport)

    def test_patients_who_were_charged_under_another_name(self, hospitals, make_order, caplog):
        """A site that was renamed has no second budget; why it refuses, only its own log says."""
        people = [frozenset({f"{number:064x}"}) for number in range(5)]
        home, ledger = hospitals.home("south"), hospitals.ledger("south")
        overlap.write(home / "teacher", people, private=True)
        before = [Charge("before", "patient", 0.1, needs_budget=False)]
        ledger.reserve("earlier", before, people={"before": people})
        hospitals.start()
        with pytest.raises(FederationError, match="south refuses: this site's ledger refuses"):
            run(make_order(), hospitals.transport)
        assert "5 of the 5 patients of cohort 'south'" in caplog.text
        assert len(hospitals.charges("south")) == 1
        assert not hospitals.charges("north")

    def test_a_site_killed_while_it_finishes_destroys_its_secrets_later(
        self, hospitals, make_order, monkeypatch
    ):
        from canal.privacy.randomness import Secret

        order = make_order()

        destroy = Secret.destroy

        def killed(path):
            if "sessions" in path.parts:
                raise OSError("killed")
            destroy(path)

        with monkeypatch.context() as patch:
            patch.setattr(Secret, "destroy", staticmethod(killed))
            with pytest.raises(FederationError, match="it failed"):
                run(order, hospitals.transport)
        hospitals.start()
        run(order, hospitals.transport)
        for name in hospitals.names:
            kept = {p.name for p in (hospitals.home(name) / "sessions" / session(order)).iterdir()}
            left = {"agreement.json", "finished", "items.json", "lock", "member.json"}
            assert kept == left

    def test_queries_without_labels_are_refused_before_anybody_pays(
        self, hospitals, make_order, asked, tmp_path
    ):
        shutil.copytree(asked / "images", tmp_path / "bare" / "images")
        with pytest.raises(CanalError, match="no query has a label"):
            run(make_order(queries=str(tmp_path / "bare")), hospitals.transport)
        assert unpaid(hospitals)

    def test_an_order_that_waits_longer_is_the_same(self, hospitals, make_order):
        """Stopped when everyone has paid."""

        def stop(head, arrays):
            raise FederationError("stopped")

        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), Malicious(hospitals.transport, "announce", stop))
        assert run(make_order(wait=99.0), hospitals.transport).private
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_another_order_for_the_same_place_is_refused_once_all_paid(self, hospitals, make_order):
        def stop(head, arrays):
            raise FederationError("stopped")

        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), Malicious(hospitals.transport, "announce", stop))
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
            if message.head["kind"] in ("announce", "sum", "upload"):
                answer = Message.from_bytes(old["north"].answer(requests["north"]))
                assert answer.head["ok"] is False
                assert "finished here" in answer.head["error"]
