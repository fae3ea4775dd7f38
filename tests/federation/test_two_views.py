"""One noisy view of a query, and no second one."""

import json
import shutil

import numpy as np
import pytest

from canal.errors import FederationError
from canal.federation import remote
from canal.federation.aggregate import run
from canal.federation.message import Message
from federation.malicious import Malicious, refused, set_in, topic

pytestmark = pytest.mark.usefixtures("small_blocks")


class TestTwoViews:
    """One noisy view of a query, and no second one."""

    def test_another_content_under_the_same_name(self, hospitals, make_order):
        def repaint(head, arrays):
            arrays["images"] = np.asarray(arrays["images"]) ^ 255

        refused(hospitals, make_order(), "upload", repaint, "has other content than was agreed")

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
        for about in ("announce", "features"):
            with pytest.raises(FederationError, match="agree first"):
                self._again(spy, about, lambda head, arrays: None)
        for about in ("prepare", "upload", "commit"):
            with pytest.raises(FederationError, match="is finished here"):
                self._again(spy, about, lambda head, arrays: None)

    @staticmethod
    def _again(transport, about, change):
        found = False
        for requests in transport.sent:
            request = next(iter(requests.values()))
            message = Message.from_bytes(request)
            if topic(message.head) == about:
                found = True
                head = json.loads(json.dumps(message.head))
                change(head, {})
                remote.ask(transport.inner, Message(head, message.arrays))
        assert found, f"nothing was sent about {about}"

    @pytest.fixture
    def stopped(self, hospitals, make_order):
        """A release that stops before its last block, and all that was said until then."""
        spy = Malicious(hospitals.transport)
        real = spy.ask

        def ask(requests):
            head = Message.from_bytes(next(iter(requests.values()))).head
            if head.get("step") == "features" and head["number"] == 2:
                raise FederationError("stopped")
            return real(requests)

        spy.ask = ask
        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), spy)
        return spy

    def test_other_caps_for_a_block_that_was_answered(self, hospitals, stopped):
        change = set_in("statistics", "caps", "values", 0, value=9.0)
        with pytest.raises(FederationError, match="other statistics were published"):
            self._again(stopped, "announce", change)

    def test_other_terms_while_it_is_under_way(self, hospitals, stopped):
        for change in (
            set_in("contract", "key", value="another"),
            set_in("contract", "spec", "queries", "case-000", value="0" * 64),
            set_in("contract", "spec", "plan", "epsilon", value=7.0),
        ):
            for about in ("prepare", "upload", "commit"):
                with pytest.raises(FederationError, match="another contract was agreed to"):
                    self._again(stopped, about, change)

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
            if Message.from_bytes(request).head["kind"] == "sum"
        ]
        assert len(pairs) == 6
        for site, request, answer in reversed(pairs):
            assert hospitals.sites[site].answer(request) == answer

    def test_a_key_that_was_charged_before(self, make_hospitals, make_order):
        """A second release under the first one's charge would be free."""
        hospitals = make_hospitals(again=True)
        first = run(make_order("first"), hospitals.transport)
        key = first.manifest.ledger["key"]
        change = set_in("contract", "key", value=key)
        refused(hospitals, make_order("second"), "commit", change, "this key was charged before")
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_a_journal_that_was_set_back_does_not_answer_again(self, hospitals, make_order):
        """A backup of before the first answer: other caps would be a second view, with other noise.

        Everything is brought back: keys, agreement, queries. What was answered is known beside the
        keys, which no backup holds.
        """
        spy = Malicious(hospitals.transport)
        backups, homes = {}, {name: hospitals.home(name) for name in hospitals.names}

        def ask(requests):
            head = Message.from_bytes(next(iter(requests.values()))).head
            if head["kind"] == "announce" and not backups:
                for name, home in homes.items():
                    backups[name] = home.with_name(f"{name}-backup")
                    shutil.copytree(home, backups[name], symlinks=True)
            if head.get("step") == "features" and head["number"] == 2:
                raise FederationError("stopped")
            return real(requests)

        real, spy.ask = spy.ask, ask
        with pytest.raises(FederationError, match="stopped"):
            run(make_order(), spy)
        for name, home in homes.items():
            shutil.rmtree(home)
            shutil.copytree(backups[name], home, symlinks=True)
        hospitals.start()
        spy.inner = hospitals.transport
        # The journal itself has forgotten; whoever asks otherwise would be answered otherwise.
        assert not list(homes["north"].glob("sessions/*/answer-*"))
        self._again(spy, "announce", lambda head, arrays: None)
        with pytest.raises(FederationError, match="journal was set back"):
            self._again(spy, "features", lambda head, arrays: None)
        with pytest.raises(FederationError, match="journal was set back"):
            run(make_order(), hospitals.transport)

    def test_a_backup_of_a_finished_session_has_no_key(self, hospitals, make_order):
        spy = Malicious(hospitals.transport)
        backups, homes = {}, {name: hospitals.home(name) for name in hospitals.names}

        def ask(requests):
            if Message.from_bytes(next(iter(requests.values()))).head["kind"] == "finish":
                for name, home in homes.items():
                    backups[name] = home.with_name(f"{name}-backup")
                    shutil.copytree(home, backups[name], symlinks=True)
            return real(requests)

        real, spy.ask = spy.ask, ask
        run(make_order(), spy)
        for name, home in homes.items():
            shutil.rmtree(home)
            shutil.copytree(backups[name], home, symlinks=True)
            for path in home.glob("sessions/*/answer-*"):
                path.unlink()
        hospitals.start()
        spy.inner = hospitals.transport
        with pytest.raises(FederationError, match="the keys of this session are lost"):
            self._again(spy, "features", lambda head, arrays: None)

    def test_a_journal_that_was_removed_does_not_make_it_free(self, hospitals, stopped):
        for name in hospitals.names:
            shutil.rmtree(hospitals.home(name) / "sessions")
        hospitals.start()
        for about in ("prepare", "upload", "commit"):
            with pytest.raises(FederationError, match="never begun here"):
                self._again(stopped, about, lambda head, arrays: None)
        self._again(stopped, "handshake", lambda head, arrays: None)
        for about in ("prepare", "upload", "commit"):
            with pytest.raises(FederationError, match="another key for 'north' than its own"):
                self._again(stopped, about, lambda head, arrays: None)
