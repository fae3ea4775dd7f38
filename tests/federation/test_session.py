"""One session, whatever the mechanism: every message at its time, and about what was agreed on."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from canal.errors import FederationError
from canal.features.queries import Queries
from canal.features.site import inputs
from canal.federation.aggregate import read_images, run
from canal.federation.history import history
from canal.federation.message import Message
from canal.learning import checkpoint
from canal.release.manifest import Manifest
from federation.malicious import (
    PAPER,
    Malicious,
    Spy,
    journals,
    refused,
    set_in,
    tell,
    unpaid,
    upload,
)

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def stop(hospitals, make_order):
    """Carry an order out until a message about something is due; gives what was sent."""

    def stop(until, out="release", **choices):
        spy = Spy(hospitals.transport, until)
        with pytest.raises(FederationError, match="stopped"):
            run(make_order(out, **choices), spy)
        return spy

    return stop


@pytest.fixture
def blocks(make_order, checkpoints):
    """What an aggregator uploads, block by block."""
    start = checkpoint.describe(checkpoints.init)
    return [dict(block) for block in inputs(Queries.of(read_images(make_order(), start)))]


class TestUploads:
    """Public inputs come before anybody pays, and are what the contract names, or nothing."""

    def test_without_them_nobody_agrees(self, hospitals, stop):
        """An aggregator that does not care which ones are lacking."""
        (head,) = stop("upload").heads("prepare")
        answer = tell(hospitals.sites["north"], head | {"kind": "commit"})
        assert "the queries from 0 on did not come yet" in answer["error"]
        assert unpaid(hospitals)

    @pytest.mark.parametrize("number", [-1, 3, 10**30])
    def test_a_block_that_the_contract_does_not_have(self, hospitals, stop, blocks, number):
        head = stop("commit").heads("prepare")[0]
        answer = tell(hospitals.sites["north"], upload(head, number), blocks[0])
        assert f"there is no block {number} of queries" in answer["error"]
        (folder,) = journals(hospitals)
        assert len(list((folder / "inputs").iterdir())) == 3

    @pytest.mark.parametrize(
        "change",
        [
            lambda block: block.pop("masks"),
            lambda block: block.update(images=block["images"].astype(float)),
            lambda block: block.update(images=np.repeat(block["images"], 2, axis=0)),
            lambda block: block.update(images=block["images"][:, :, :1]),
            lambda block: block.update(images=block["images"][::-1]),
            lambda block: block.update(masks=np.zeros(3, np.uint8)),
            lambda block: block.update(labelled=~block["labelled"]),
            dict.clear,
        ],
    )
    def test_junk_is_not_kept(self, hospitals, stop, blocks, change):
        (head,) = stop("upload").heads("prepare")
        change(blocks[0])
        north = hospitals.sites["north"]
        assert tell(north, upload(head, 0), blocks[0])["ok"] is False
        (folder,) = journals(hospitals)
        assert not list(folder.glob("inputs/*"))
        assert tell(north, head)["lacking"] == [0, 1, 2]

    def test_what_comes_beside_a_block_is_not_kept(self, hospitals, stop, blocks):
        (head,) = stop("upload").heads("prepare")
        more = blocks[0] | {"more": np.zeros(1 << 20, np.uint8)}
        assert tell(hospitals.sites["north"], upload(head, 0), more)["ok"]
        (kept,) = journals(hospitals)[0].glob("inputs/*")
        assert kept.stat().st_size < 1 << 17

    def test_a_damaged_block_is_asked_for_again(self, hospitals, make_order, stop):
        """Also when everyone has paid; nobody pays twice."""
        stop("announce")
        for name in hospitals.names:
            path = journals(hospitals, name)[0] / "inputs" / f"{1:08d}"
            path.write_bytes(path.read_bytes()[:-100])
        hospitals.start()
        spy = Spy(hospitals.transport)
        assert run(make_order(), spy).private
        assert [head["number"] for head in spy.heads("upload")] == [1]
        assert all(len(hospitals.charges(name)) == 1 for name in hospitals.names)

    def test_a_block_as_another_shape_does_not_displace_what_came(self, hospitals, stop, blocks):
        """Its bytes, and so its contents, are the same."""
        head = stop("announce").heads("commit")[0]
        path = journals(hospitals)[0] / "inputs" / f"{0:08d}"
        before, block = path.read_bytes(), blocks[0]
        for name in ("images", "masks"):
            block[name] = block[name].reshape(len(block[name]), 1, 16, -1)
        assert tell(hospitals.sites["north"], upload(head, 0), block)["ok"]
        assert path.read_bytes() == before

    def test_nothing_for_a_contract_of_others(self, hospitals, stop, blocks):
        """One that this site would not take part in."""
        (head,) = stop("upload").heads("prepare")
        for change, match in (
            (set_in("contract", "roster", "north", "public", value="00" * 32), "does not belong"),
            (set_in("contract", "session", value="f" * 32), "of another session"),
            (set_in("contract", "spec", "plan", "colluding", value=0), "insists on t = 1"),
        ):
            other = json.loads(json.dumps(head))
            change(other, {})
            answer = tell(hospitals.sites["north"], upload(other, 0), blocks[0])
            assert match in answer["error"]
        assert not list(journals(hospitals)[0].glob("inputs/*"))


class TestOrder:
    """What was only proposed is not agreed to; what was not answered is not published."""

    def test_no_sum_of_what_was_only_proposed(self, hospitals, stop):
        head = stop("commit").heads("prepare")[0]
        for step in ("statistics", "features"):
            about = {"kind": "sum", "session": head["session"], "step": step, "number": 0}
            assert "agree first" in tell(hospitals.sites["north"], about)["error"]

    def test_an_agreement_that_nobody_paid_for_is_none(self, hospitals, stop):
        """In the very process that has seen the proposal, too: the ledger decides."""
        head = stop("commit").heads("prepare")[0]
        agreed = journals(hospitals)[0] / "agreement.json"
        agreed.write_text(json.dumps(head["contract"]))
        about = {"kind": "sum", "session": head["session"], "step": "features", "number": 0}
        assert "never paid for" in tell(hospitals.sites["north"], about)["error"]

    def test_no_statistics_before_a_site_answered_for_them(self, hospitals, make_order):
        """They cannot be of this site's teacher."""

        def lie(head, arrays):
            head.update(kind="announce", statistics={}, numbers={})

        refused(
            hospitals, make_order(**PAPER), "statistics", lie, "statistics 0 was never answered"
        )

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (set_in("statistics", value=None), "these are no statistics"),
            (set_in("statistics", value=[1]), "these are no statistics"),
            (set_in("statistics", "caps", "more", value=1), "more beside caps and importance"),
            (set_in("statistics", "more", value=1), "more beside caps and importance"),
            (set_in("numbers", value={}), "derived other noise"),
            (set_in("numbers", "more", value=1), "derived other noise"),
        ],
    )
    def test_statistics_are_those_and_nothing_else(self, hospitals, make_order, change, match):
        refused(hospitals, make_order(), "announce", change, match)
        assert not list(journals(hospitals)[0].glob("statistics.json"))

    @pytest.mark.parametrize(
        ("step", "number"),
        [
            *(("features", number) for number in (-1, 3, 10**30)),
            *(("statistics", 0), ("rounds", 0), ("count", 0), ("", 0)),
            *(("../../keys", 0), ("/etc/passwd", 0), ("features-000000", 0), (None, 0)),
        ],
    )
    def test_no_step_that_the_release_does_not_have(self, hospitals, stop, step, number):
        """Also where a file of that name is in the journal."""
        head = stop("finish").heads("features")[0]
        answer = tell(hospitals.sites["north"], head | {"step": step, "number": number})
        assert f"this release has no {step} {number}" in answer["error"]

    def test_no_end_before_every_step_was_answered(self, make_hospitals, make_order):
        """With the very manifest that it would have had."""
        whole = run(
            make_order("whole", seed=3), make_hospitals("whole-ones", research=True).transport
        )
        hospitals = make_hospitals(research=True)

        def early(head, arrays):
            if head["number"] == 2:
                head.update(kind="finish", manifest=whole.manifest.to_bytes().decode())

        refused(hospitals, make_order(seed=3), "features", early, "when every step was answered")
        assert not (journals(hospitals)[0] / "finished").exists()

    @pytest.mark.parametrize("more", [{"more": 1}, {"caps": None}])
    def test_a_manifest_says_nothing_beside_what_was_agreed_on(self, hospitals, make_order, more):
        def add(head, arrays):
            made = Manifest.from_bytes(head["manifest"].encode())
            made = replace(made, statistics=made.statistics | more)
            head["manifest"] = made.to_bytes().decode()

        refused(hospitals, make_order(), "finish", add, "another statistics|contradicts itself")
        assert not (journals(hospitals)[0] / "finished").exists()


class TestTwoSessions:
    """About the same images."""

    def test_the_first_that_is_answered_is_the_only_one(self, hospitals, make_order, stop):
        """Both had agreed, and both are paid for, before either was answered."""
        stop("features", "first")
        stop("features", "second")
        assert all(len(hospitals.charges(name)) == 2 for name in hospitals.names)
        assert run(make_order("second"), hospitals.transport).private
        with pytest.raises(FederationError, match="40 of these queries were answered in another"):
            run(make_order("first"), hospitals.transport)

    def test_one_in_other_words_that_was_answered_by_an_earlier_version(self, hospitals, stop):
        """Which kept the digests of images in what was agreed to, and called it otherwise."""
        head = stop("commit").heads("prepare")[1]
        north = hospitals.sites["north"]
        assert tell(north, head | {"kind": "commit"})["ok"]
        (folder,) = journals(hospitals)
        agreed = json.loads((folder / "agreement.json").read_text())
        agreed["images"] = json.loads((folder / "items.json").read_text())
        agreed["agreement"] = agreed.pop("spec")
        old = folder.with_name("e" * 32)
        old.mkdir()
        (old / "agreement.json").write_text(json.dumps(agreed))
        (old / "finished").write_text("0" * 64)
        hospitals.start()
        again = tell(hospitals.sites["north"], head)
        assert "40 of these queries were answered in another session" in again["error"]
        told = history(hospitals.home("north"))["sessions"]
        assert [each["times"] for each in told] == [40, 40]
        assert {each["state"] for each in told} == {"under way", "finished"}


def retrain(hospitals, name="south"):
    """Give a site the teacher of another initialisation, and start it anew."""
    home = hospitals.home(name) / "teacher"
    network, about = checkpoint.load(home)
    shutil.rmtree(home)
    checkpoint.save(home, network, replace(about, initialisation="e" * 64))
    hospitals.start(name)


class TestAChangedSite:
    """Between two messages a site may be started anew, and be another."""

    def test_another_teacher_than_it_showed(self, hospitals, stop):
        head = stop("commit").heads("prepare")[0]
        retrain(hospitals)
        for kind in ("prepare", "commit"):
            answer = tell(hospitals.sites["south"], head | {"kind": kind})
            assert "the teacher here has another initialisation" in answer["error"]
        assert unpaid(hospitals)

    def test_another_teacher_than_it_agreed_with(self, hospitals, stop):
        head = stop("features").heads("commit")[0]
        retrain(hospitals)
        about = {"kind": "sum", "session": head["session"], "step": "features", "number": 0}
        answer = tell(hospitals.sites["south"], about)
        assert "the teacher here has another initialisation" in answer["error"]

    def test_it_introduces_itself_anew_for_the_same_release_alone(self, make_hospitals):
        hospitals = make_hospitals(trust=["trusted", "secure-sum"], research=True)
        head = {"kind": "handshake", "session": "1" * 32, "release": "features"}
        head |= {"trust": "secure-sum"}
        first = tell(hospitals.sites["south"], head)
        retrain(hospitals)
        for other in ({"trust": "trusted"}, {"research": True}, {"release": "adapters"}):
            answer = tell(hospitals.sites["south"], head | other)
            assert "begun under another model of trust" in answer["error"]
        second = tell(hospitals.sites["south"], head)
        assert second["public"] == first["public"]
        assert first["initialisation"] != second["initialisation"] == "e" * 64

    def test_a_site_under_another_name_than_its_teacher(self, hospitals):
        """Its patients would be charged as somebody else's."""
        shutil.rmtree(hospitals.home("south") / "teacher")
        shutil.copytree(hospitals.home("north") / "teacher", hospitals.home("south") / "teacher")
        hospitals.start("south")
        head = {"kind": "handshake", "session": "1" * 32, "release": "features"}
        answer = tell(hospitals.sites["south"], head | {"trust": "secure-sum"})
        assert answer == {"ok": False, "error": "it failed; its own log says why"}


@pytest.mark.parametrize("release", ["nothing", "", None, ["features"]])
def test_no_session_for_what_sites_have_no_part_in(hospitals, release):
    head = {"kind": "handshake", "session": "1" * 32, "trust": "secure-sum", "release": release}
    answer = tell(hospitals.sites["north"], head)
    assert "not across hosts" in answer["error"] or "is unknown here" in answer["error"]


def test_no_noise_in_pairs(make_hospitals, make_order):
    """It is bound to nothing: two releases of a site would have the same."""
    hospitals = make_hospitals(research=True)
    paired = set_in("contract", "spec", "noise", value="seed 3, paired")
    refused(hospitals, make_order(seed=3), "commit", paired, "drawn in pairs")


class Mad(Malicious):
    """Before every message, one site is sent the same with junk in each of its fields."""

    JUNK = (None, -1, 1e308, "x", "0" * 31, [], {}, [None], True)

    def ask(self, requests):
        first = next(iter(requests))
        message = Message.from_bytes(requests[first])
        tried = []
        for field in message.head:
            for junk in self.JUNK:
                if field != "kind" and junk != message.head[field]:
                    head = message.head | {field: junk}
                    tried.append(Message(head, message.arrays).to_bytes())
            if field != "kind":
                less = {name: value for name, value in message.head.items() if name != field}
                tried.append(Message(less, message.arrays).to_bytes())
        if message.head["kind"] == "handshake":  # what comes first is what is begun
            answers = super().ask(requests)
            self.found += [(answers[first], self.site.answer(each)) for each in tried]
            return answers
        said = [self.site.answer(each) for each in tried]
        answers = super().ask(requests)
        self.found += [(answers[first], each) for each in said]
        return answers


def test_whatever_a_field_says_it_is_refused_or_changes_nothing(make_hospitals, make_order):
    """In every message of a release; and then that release comes, and is paid for once."""
    hospitals = make_hospitals()
    mad = Mad(hospitals.transport)
    mad.site, mad.found = hospitals.sites["north"], []
    made = run(make_order(**PAPER), mad)
    assert made.private
    assert len(hospitals.charges("north")) == 1
    assert len(mad.found) > 200
    for answer, other in mad.found:
        if other != answer:
            assert Message.from_bytes(other).head["ok"] is False, Message.from_bytes(other).head
