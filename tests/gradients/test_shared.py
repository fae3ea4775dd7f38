"""The shared network with its adapter: measured on public images, once rows are independent."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from canal.errors import DataError, InvalidValueError
from canal.gradients import start as shared_module
from canal.gradients.patients import Patients
from canal.gradients.public import measure
from canal.gradients.start import settled, share
from canal.learning import checkpoint
from canal.learning.networks import weights_digest
from canal.release.workspace import Workspace
from gradients.place import FEW


def test_rounds_start_from_the_initialisation(shared, init):
    there = shared()
    network, _ = checkpoint.load(init)
    assert there.start.initialisation == weights_digest(network)
    assert torch.equal(there.start.values, FEW.install(network).read())
    assert there.start.views


def test_the_same_images_measure_the_same(init, recipient, shared):
    for allocation in ("flat", "ellipsoid", "channels"):
        again = share(init, recipient, FEW, allocation, chunk=4).start.public
        first = shared(allocation).start.public
        # Several threads may differ in the last bits; that is why a release keeps its numbers.
        for name in ("scales", "bounds", "weights", "length"):
            assert getattr(again, name) == pytest.approx(getattr(first, name), rel=1e-5)


def test_what_was_measured_for_a_release_is_not_measured_again(
    init, recipient, tmp_path, monkeypatch
):
    passed = []
    options = {"directions": 6, "chunk": 4}
    first = share(init, recipient, FEW, "channels", **options, progress=lambda *n: passed.append(n))
    assert sum(count for count, _ in passed) == {total for _, total in passed}.pop()
    workspace = Workspace(tmp_path / "release")
    settled(workspace, first.start)
    monkeypatch.setattr(shared_module, "look", lambda *_, **__: pytest.fail("measured again"))
    again = share(init, recipient, FEW, "channels", **options, kept=workspace)
    assert again.start.public.to_json() == first.start.public.to_json()
    np.testing.assert_array_equal(again.start.public.channels, first.start.public.channels)
    with pytest.raises(pytest.fail.Exception):
        share(init, recipient, FEW, "channels", **options | {"directions": 5}, kept=workspace)


def test_by_hand_without_augmentation(init, recipient, gradients, shared):
    """One look at every person among the images, averaged over the images of each."""
    there = share(init, recipient, FEW, "flat", views=0, chunk=4)
    assert not there.start.views
    shared().coordinates.write(shared().start.values)
    people = Patients("recipient", recipient, views=0, chunk=4)
    rows = torch.cat(list(people.gradients(gradients, 0)))
    want = measure(rows, shared().coordinates.groups, "flat")
    assert there.start.public.to_json() == want.to_json()


def test_batches_of_any_size_measure_nearly_the_same(init, recipient):
    lengths = [
        share(init, recipient, FEW, "flat", chunk=chunk).start.public.length for chunk in (1, 4, 7)
    ]
    assert lengths == pytest.approx([lengths[0]] * 3, rel=1e-4)


def test_images_without_labels_measure_nothing(init, recipient):
    none, some = (replace(recipient, unlabelled=frozenset(recipient.ids[at:])) for at in (0, 3))
    with pytest.raises(DataError, match="label a few of them"):
        share(init, none, FEW, "flat")
    some = share(init, some, FEW, "flat", chunk=4)
    few = share(init, recipient.rows(recipient.ids[:3]), FEW, "flat", chunk=4)
    assert some.start.public.to_json() == few.start.public.to_json()


def test_rows_are_looked_at_before_anything_is_measured(init, recipient, monkeypatch):
    """In a full batch of the size that rounds have, even where there are few public images."""
    seen = []

    def refuse(gradients, images, masks):
        seen.append(len(images))
        raise InvalidValueError("rows mix")

    monkeypatch.setattr(shared_module, "check_rows", refuse)
    monkeypatch.setattr(shared_module, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(InvalidValueError, match="rows mix"):
        share(init, recipient.rows(recipient.ids[:2]), FEW, "flat", chunk=16)
    assert seen == [16]


def test_channels_follow_from_network_and_adapter(shared):
    there = shared("channels")
    np.testing.assert_array_equal(there.start.public.channels, there.coordinates.groups)
    assert there.start.public.blocks == there.coordinates.groups.max() + 1
