"""Teachers and images at a site: what it shows of its own, and what it takes for one."""

import shutil

import numpy as np
import pytest
from PIL import Image

from canal.errors import FederationError
from canal.features.plan import Plan
from canal.federation import remote
from canal.federation.aggregate import Parties, run
from canal.federation.message import Message
from federation.malicious import Malicious, refused, unpaid

pytestmark = pytest.mark.usefixtures("small_blocks")


class TestTeachers:
    """What a site shows of its teacher, and what it takes for one."""

    def test_a_digest_of_the_weights_is_not_shown(self, make_hospitals):
        """Not even to an aggregator that is trusted with features, before they are paid for."""
        hospitals = make_hospitals(trust=["trusted"])
        site = hospitals.sites["north"]
        for research in (False, True):
            question = Message(
                {
                    "kind": "handshake",
                    "session": str(int(research)) * 32,
                    "release": "features",
                    "trust": "trusted",
                    "research": research,
                }
            )
            answer = site.answer(question.to_bytes())
            assert site.cohort.teacher.digest.encode() not in answer
            assert Message.from_bytes(answer).head["claim"][0] == "north"

    def test_a_plan_for_other_features_than_the_teachers(self, hospitals, make_order):
        def other(head, arrays):
            plan = head["contract"]["spec"]["plan"]
            plan["grid"] = [1]
            head["stated"] = Plan.from_json(plan).calibrate().to_json()

        refused(hospitals, make_order(), "commit", other, "the teacher here has others")
        assert unpaid(hospitals)

    def test_images_of_another_shape_with_the_same_bytes(self, hospitals, make_order):
        def reshape(head, arrays):
            count = len(arrays["images"])
            for name in ("images", "masks"):
                arrays[name] = np.asarray(arrays[name]).reshape(count, 1, 16, 64)

        refused(hospitals, make_order(), "upload", reshape, "this site's teacher takes")
        assert unpaid(hospitals)

    def test_the_same_images_with_other_truths(self, hospitals, make_order, asked, tmp_path):
        """Features do not depend on truths: it would be a second view."""
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
        order = make_order()

        def stop(head, arrays):
            raise FederationError("stopped")

        with pytest.raises(FederationError, match="stopped"):
            run(order, Malicious(hospitals.transport, "finish", stop))
        for name in hospitals.names:
            shutil.rmtree(hospitals.home(name) / "teacher")
        hospitals.start()
        assert run(order, hospitals.transport).private

    def test_an_initialisation_is_what_its_name_says(self, hospitals, make_order, checkpoints):
        from canal.learning.checkpoint import describe

        Parties(make_order(), hospitals.transport).send_initialisation(checkpoints.init)
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
