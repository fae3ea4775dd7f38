"""What one patient adds is theirs alone: sums are additive over patients, to the last integer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from canal.data.arrays import Arrays
from canal.errors import DataError, InvalidValueError
from canal.gradients.clip import Clip
from canal.gradients.patients import Patients
from canal.learning.augmentation import augmented
from canal.learning.networks import to_float
from canal.privacy import Lattice

LATTICE = Lattice(2.0**-16)
LONGEST = 2**16


@pytest.fixture(scope="module")
def cohort(patients_of):
    """Seven patients with one, two or three images, strewn over the rows."""
    arrays = patients_of("dermoscopy", 13)
    images = dict(zip(arrays.ids, "abcdefgabcacg", strict=True))
    return replace(arrays, patients={name: f"patient {who}" for name, who in images.items()})


@pytest.fixture(scope="module")
def clip(gradients, cohort):
    """One that bounds some of them and leaves others as they are."""
    people = Patients("site", cohort)
    norms = torch.cat([part.norm(dim=1) for part in people.gradients(gradients, 3)])
    count, middle = len(next(people.gradients(gradients, 3))[0]), float(norms.median())
    return Clip(np.ones(count), np.zeros(count, dtype=np.int64), np.array([middle]), middle)


@pytest.fixture(scope="module")
def add_up(gradients, clip):
    """The integers that a site's patients add up to in round 3."""

    def total(arrays, kind=Patients, number=3, **options):
        people = kind("site", arrays, **options)
        return people.total(gradients, clip, LATTICE, number).numpy()

    return total


def ids_of(arrays, who):
    return [name for name in arrays.ids if arrays.patients[name] == who]


def people_in(arrays):
    return list(dict.fromkeys(arrays.patients.values()))


@pytest.mark.parametrize("chunk", [3, 4, 16])
def test_a_sum_without_a_patient_is_the_sum_less_that_patients_part(chunk, cohort, add_up):
    """The decisive property: everyone in turn, augmented, wherever chunks begin and end."""
    whole = add_up(cohort, chunk=chunk)
    parts = []
    for who in people_in(cohort):
        own = add_up(cohort.rows(ids_of(cohort, who)), chunk=chunk)
        rest = add_up(cohort.without(who), chunk=chunk)
        np.testing.assert_array_equal(whole - rest, own)
        parts.append(own)
    np.testing.assert_array_equal(sum(parts), whole)
    # The test would see nothing if all were nothing, or all the same.
    assert len({part.tobytes() for part in parts}) == 7
    assert min(np.abs(part).max() for part in parts) > 1000


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_patients_does_not_matter(seed, cohort, add_up):
    """Patients in any order, each with their own images in theirs, others in between or not."""
    rng = np.random.default_rng(seed)
    left = {who: ids_of(cohort, who) for who in people_in(cohort)}
    turns = rng.permutation([cohort.patients[name] for name in cohort.ids])
    shuffled = cohort.rows([left[str(who)].pop(0) for who in turns])
    assert shuffled.ids != cohort.ids
    np.testing.assert_array_equal(add_up(shuffled, chunk=4), add_up(cohort, chunk=4))


def test_a_patient_moves_a_sum_by_one_and_two_by_two(cohort, add_up):
    """Norms of differences in Python's integers; some patients reach the bound."""
    parts = {who: add_up(cohort.rows(ids_of(cohort, who)), chunk=4) for who in people_in(cohort)}
    whole = add_up(cohort, chunk=4)

    def length(integers):
        return sum(n * n for n in integers.tolist())

    one = {who: length(whole - add_up(cohort.without(who), chunk=4)) for who in parts}
    assert max(one.values()) <= LONGEST**2
    assert sum(value > 0.99 * LONGEST**2 for value in one.values()) >= 3
    # Somebody else in their place: the same others, and another part.
    for who, part in parts.items():
        for other in parts.values():
            assert length(part - other) <= (2 * LONGEST) ** 2
        assert length(part + part) <= (2 * LONGEST) ** 2
        assert one[who] == length(part)


class ByPlace(Patients):
    """Augmentation that follows from a row's place in its batch: what must not be."""

    def batch(self, looks, number):
        rows = [row for row, _ in looks]
        padded = self.arrays.images[np.resize(rows, self.chunk)]
        truths = self.arrays.masks[np.resize(rows, self.chunk)]
        images, masks = to_float(torch.from_numpy(padded)), torch.from_numpy(truths).float()
        images, masks, _ = augmented(images, masks, np.random.default_rng([5, number]))
        return images, masks


class Ragged(Patients):
    """Patients who are clipped together with whoever shares their batch."""

    def total(self, gradients, clip, lattice, number, **options):
        total = torch.zeros(len(clip.scale), dtype=torch.int64)
        for rows in self.gradients(gradients, number):
            total += clip.apply(rows.mean(dim=0, keepdim=True), lattice)[0] * len(rows)
        return total


@pytest.mark.parametrize("kind", [ByPlace, Ragged])
def test_negative_control_parts_that_depend_on_others(kind, cohort, add_up):
    """The same test finds augmentation by place, and patients who are clipped together."""
    whole = add_up(cohort, kind, chunk=4)
    violated = 0
    for who in people_in(cohort):
        own = add_up(cohort.rows(ids_of(cohort, who)), kind, chunk=4)
        rest = add_up(cohort.without(who), kind, chunk=4)
        violated += not np.array_equal(whole - rest, own)
    assert violated >= 5


def test_a_patient_is_the_mean_of_their_images(cohort, gradients):
    """By hand, without augmentation: one after the other through the network, then averaged."""
    people = Patients("site", cohort, views=0, chunk=4)
    found = torch.cat(list(people.gradients(gradients, 0)))
    assert len(people) == len(found) == 7
    images = to_float(torch.from_numpy(np.array(cohort.images)))
    masks = torch.from_numpy(np.array(cohort.masks)).float()
    rows = torch.cat([gradients(images[at : at + 1], masks[at : at + 1]) for at in range(13)])
    for who, row in zip(people_in(cohort), found, strict=True):
        mine = [at for at, name in enumerate(cohort.ids) if cohort.patients[name] == who]
        want = rows[mine].mean(dim=0)
        # Other kernels serve other shapes of a batch; a network amplifies their last bits.
        assert float((row - want).norm()) < 0.01 * float(want.norm())


def test_images_vary_from_round_to_round_and_never_with_company(cohort, add_up):
    people = Patients("site", cohort, chunk=4)
    first, again, later = (people.batch([(0, 0), (1, 0)], number) for number in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0][0], later[0][0])
    turned = people.batch([(1, 0), (5, 0), (0, 0)], 0)
    assert torch.equal(turned[0][2], first[0][0])
    assert torch.equal(turned[1][2], first[1][0])
    assert not np.array_equal(add_up(cohort, number=0), add_up(cohort, number=1))
    plain = Patients("site", cohort, views=0, chunk=4)
    assert torch.equal(plain.batch([(0, 0)], 0)[0], plain.batch([(0, 1)], 1)[0])


def test_empty_places_are_black_and_not_read(cohort):
    images, masks = Patients("site", cohort, chunk=4).batch([(2, 0), (3, 0)], 0)
    assert images.shape[0] == masks.shape[0] == 4
    assert (images[2:] == -1).all()
    assert not masks[2:].any()


def test_images_without_a_label_add_nothing(cohort, add_up):
    """Neither as a further image of somebody, nor as somebody."""
    some = cohort.ids[1], cohort.ids[3]  # one of three images of a patient, and a patient's only
    unlabelled = replace(cohort, unlabelled=frozenset(some))
    labelled = cohort.rows([name for name in cohort.ids if name not in some])
    np.testing.assert_array_equal(add_up(unlabelled, chunk=4), add_up(labelled, chunk=4))
    assert len(Patients("site", unlabelled)) == 6


def test_a_cohort_without_labels_is_refused(cohort):
    with pytest.raises(DataError, match="'north' has no labelled image"):
        Patients("north", replace(cohort, unlabelled=frozenset(cohort.ids)))


def test_an_image_of_nobody_known_is_a_patient_of_its_own(cohort):
    people = Patients("site", replace(cohort, patients={}))
    assert len(people) == 13
    assert [rows for rows in people.rows.values() if len(rows) > 1] == []


def test_an_image_of_nobody_known_is_never_somebody_who_has_a_name(cohort, add_up):
    """Whatever names a hospital gives: merged, one would show in what the other adds."""
    first, second, *_ = cohort.ids
    for name in (first, f"image {first}", f"patient {first}"):
        pair = replace(cohort.rows([first, second]), patients={second: name})
        assert len(Patients("site", pair)) == 2
        np.testing.assert_array_equal(
            add_up(pair, chunk=4),
            add_up(pair.rows([first]), chunk=4) + add_up(pair.rows([second]), chunk=4),
        )


def test_a_patient_who_looks_like_others_changes_nobodys_part(cohort, add_up):
    """Nobody is merged by looks: whom an image joins must not depend on who else is there."""
    one = cohort.rows([cohort.ids[0]])
    twins = [Arrays((name,), one.images, one.masks, name) for name in ("first", "second", "third")]
    pair = twins[0].beside(twins[1])
    np.testing.assert_array_equal(add_up(pair, chunk=4), 2 * add_up(one, chunk=4))
    np.testing.assert_array_equal(add_up(pair.beside(twins[2])), add_up(pair) + add_up(one))


def test_the_digest_tells_all_that_matters_apart(cohort):
    """Images, who they show, augmentation and chunk; the name of the cohort is claimed beside."""
    others = (
        Patients("site", cohort),
        Patients("site", replace(cohort, digest="other pixels")),
        Patients("site", replace(cohort, patients={})),
        Patients("site", replace(cohort, unlabelled=frozenset(cohort.ids[:1]))),
        Patients("site", cohort, views=0),
        Patients("site", cohort, chunk=5),
    )
    assert len({people.digest for people in others}) == len(others)
    assert Patients("other", cohort).digest == others[0].digest


def test_progress_is_told_image_by_image(cohort, gradients, clip):
    told = []
    people = Patients("site", cohort, chunk=4)
    people.total(gradients, clip, LATTICE, 0, progress=told.append)
    assert told == [4, 4, 4, 1]


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True])
def test_a_chunk_is_a_number_of_images(chunk, cohort):
    """Of -1, nobody would be asked."""
    with pytest.raises(InvalidValueError, match="chunk = "):
        Patients("site", cohort, chunk=chunk)


def test_several_views_are_one_patients_mean(cohort, gradients):
    """Three looks at an image are three images of a patient, each varied another way."""
    three, passed = Patients("site", cohort, views=3, chunk=4), []
    found = torch.cat(list(three.gradients(gradients, 0, passed.append)))
    assert sum(passed) == three.passes == 3 * len(cohort.ids)
    images, _ = three.batch([(0, 0), (0, 1), (0, 2)], 0)
    assert len({image.numpy().tobytes() for image in images[:3]}) == 3
    for mean, rows in zip(found, three.rows.values(), strict=True):
        looks = [three.batch([(row, view)], 0) for row in rows for view in range(3)]
        parts = torch.stack([gradients(*look)[0] for look in looks])
        torch.testing.assert_close(mean, parts.mean(0))


def test_with_several_views_a_sum_is_still_the_sum_of_its_parts(cohort, add_up):
    whole = add_up(cohort, chunk=4, views=2)
    for who in list(people_in(cohort))[:3]:
        own = add_up(cohort.rows(ids_of(cohort, who)), chunk=4, views=2)
        assert np.array_equal(whole - add_up(cohort.without(who), chunk=4, views=2), own)


@pytest.mark.parametrize("views", [-1, True, 1.0, 1025, "2"])
def test_a_number_of_views_that_is_none(views, cohort):
    with pytest.raises(InvalidValueError, match="views"):
        Patients("site", cohort, views=views)
