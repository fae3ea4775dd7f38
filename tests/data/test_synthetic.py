"""The make-believe hospitals: reproducible, unlike one another, and hard enough to learn."""

import csv
import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy import ndimage

from canal.data.synthetic import HOSPITALS, MOST_VIEWS, generate, write
from canal.errors import InvalidValueError


@pytest.fixture(scope="module")
def mixed():
    return generate(90, seed=5)


def test_the_same_seed_gives_the_same_images_and_another_gives_others():
    first, again, other = (generate(6, size=(32, 32), seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.images, again.images)
    assert np.array_equal(first.masks, again.masks)
    assert all((a != b).any() for a, b in zip(first.images, other.images, strict=True))


def test_more_images_do_not_change_the_first_ones(mixed):
    few = generate(10, seed=5)
    assert np.array_equal(few.images, mixed.images[:10])
    assert np.array_equal(few.masks, mixed.masks[:10])
    assert few.ids == mixed.ids[:10]
    assert few.patients == mixed.patients[:10]


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_a_hospital_is_the_same_alone_and_among_the_others(mixed, hospital):
    alone = generate(5, hospital=hospital, seed=5)
    rows = [row for row, site in enumerate(mixed.sites) if site == hospital][:5]
    assert np.array_equal(alone.images, mixed.images[rows])
    assert alone.ids == tuple(mixed.ids[row] for row in rows)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(64, 64), (40, 56), (16, 16), (24, 20, 16)])
def test_shapes_types_and_ranges(size, channels):
    drawn = generate(6, size=size, channels=channels)
    assert drawn.images.shape == (6, channels, *size)
    assert drawn.masks.shape == (6, 1, *size)
    assert drawn.images.dtype == drawn.masks.dtype == np.uint8
    assert set(np.unique(drawn.masks)) == {0, 1}
    assert all(np.ptp(image) > 60 for image in drawn.images)
    assert len(drawn.patients) == len(drawn.sites) == len(set(drawn.ids)) == 6


def test_grey_is_the_luminance_of_colour():
    colour, grey = (generate(6, size=(32, 32), channels=c).images.astype(float) for c in (3, 1))
    luminance = np.tensordot([0.299, 0.587, 0.114], colour, (0, 1))
    clipped = (colour == 0).any(1) | (colour == 255).any(1)
    assert np.abs(luminance - grey[:, 0])[~clipped].max() <= 1.01


def test_every_lesion_is_one_piece_of_a_sensible_size(mixed):
    share = mixed.masks.mean((1, 2, 3))
    assert share.min() > 0.02
    assert share.max() < 0.4
    assert all(ndimage.label(mask[0], np.ones((3, 3)))[1] == 1 for mask in mixed.masks)


def test_the_smallest_volumes_still_show_their_lesions():
    assert generate(60, size=(16, 16, 16), seed=1).masks.any((1, 2, 3, 4)).all()


def test_hospitals_take_turns(mixed):
    assert mixed.sites[:4] == (*HOSPITALS, HOSPITALS[0])
    assert Counter(mixed.sites) == dict.fromkeys(HOSPITALS, 30)


def test_hospitals_differ_in_appearance(mixed):
    site = np.array(mixed.sites)
    tone = mixed.images.mean((2, 3))
    redness = tone[:, 0] / tone[:, 2]
    noise = np.abs(np.diff(mixed.images[:, 1].astype(float), axis=1)).mean((1, 2))
    assert np.array_equal(redness[site == "ultrasound"], np.ones(30))
    assert redness[site == "endoscopy"].mean() > 1.15 * redness[site == "dermoscopy"].mean()
    assert noise[site == "ultrasound"].mean() > 2 * noise[site != "ultrasound"].mean()


def test_colour_alone_does_not_give_the_lesion_away(mixed):
    # The best threshold on grey of every single image, chosen with the truth at hand.
    grey, masks = mixed.images.mean(1), mixed.masks[:, 0].astype(bool)
    best = []
    for image, mask in zip(grey, masks, strict=True):
        tries = (
            side(image, level) for level in range(20, 240, 10) for side in (np.less, np.greater)
        )
        best.append(max(2 * (t & mask).sum() / (t.sum() + mask.sum()) for t in tries))
    assert np.mean(best) < 0.65


def test_patients_have_one_to_three_images_of_one_lesion(mixed):
    views = Counter(mixed.patients)
    assert set(views.values()) == set(range(1, MOST_VIEWS + 1))
    assert all(
        patient.startswith(site) for patient, site in zip(mixed.patients, mixed.sites, strict=True)
    )
    share = dict(zip(mixed.ids, mixed.masks.mean((1, 2, 3)), strict=True))
    alike = [
        abs(np.log(share[a] / share[b]))
        for a, b in pairwise(sorted(share))
        if a.rsplit("-", 1)[0] == b.rsplit("-", 1)[0]
    ]
    # The same lesion at another place, a little nearer or farther; strangers differ by far more.
    assert np.median(alike) < 0.5 * np.median(
        np.abs(np.subtract.outer(*[np.log([*share.values()])] * 2))
    )
    assert (mixed.masks[0] != mixed.masks[3]).any()


def _rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_images_are_written_beside_their_masks(tmp_path, channels, mode):
    from PIL import Image

    write(tmp_path, 7, size=(32, 24), channels=channels, seed=2)
    drawn = generate(7, size=(32, 24), channels=channels, seed=2)
    everyone = _rows(tmp_path / "metadata.csv")
    assert [row["patient_id"] for row in everyone] == list(drawn.patients)
    for number, row in enumerate(everyone):
        hospital, name = row["image_id"].split("/")
        image = Image.open(tmp_path / hospital / "images" / f"{name}.png")
        mask = Image.open(tmp_path / hospital / "masks" / f"{name}.png")
        assert image.mode == mode
        seen = np.asarray(image).reshape(32, 24, channels)
        assert np.array_equal(seen, np.moveaxis(drawn.images[number], 0, -1))
        assert np.array_equal(np.asarray(mask), 255 * drawn.masks[number, 0])
        own = {r["image_id"]: r["patient_id"] for r in _rows(tmp_path / hospital / "metadata.csv")}
        assert own[name] == row["patient_id"]


@pytest.mark.parametrize("channels", [3, 1])
def test_volumes_are_written_as_the_decathlon_does(tmp_path, channels):
    import nibabel

    write(tmp_path, 4, size=(20, 18, 16), channels=channels)
    drawn = generate(4, size=(20, 18, 16), channels=channels)
    for hospital in HOSPITALS:
        folder = tmp_path / hospital
        description = json.loads((folder / "dataset.json").read_text())
        assert description["labels"] == {"background": 0, "lesion": 1}
        assert description["file_ending"] == ".nii.gz"
        assert len(description["channel_names"]) == len(description["modality"]) == channels
        assert description["numTraining"] == len(description["training"])
        assert len(_rows(folder / "metadata.csv")) == description["numTraining"]
        for case in description["training"]:
            number = drawn.ids.index(case["image"].split("/")[-1].removesuffix(".nii.gz"))
            image = np.asarray(nibabel.load(folder / case["image"]).dataobj)
            label = np.asarray(nibabel.load(folder / case["label"]).dataobj)
            expected = np.moveaxis(drawn.images[number], 0, -1)
            assert np.array_equal(image, expected if channels == 3 else expected[..., 0])
            assert np.array_equal(label, drawn.masks[number, 0])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"count": 0}, "count = 0 must be at least 1"),
        ({"size": (64,)}, "2 or 3 sides"),
        ({"size": (64, 8)}, "at least 16 pixels"),
        ({"channels": 2}, "3 for colour or 1 for grey"),
        ({"hospital": "dentist"}, "one of dermoscopy, endoscopy, ultrasound"),
        ({"seed": -1}, "seed = -1 must not be negative"),
    ],
)
def test_errors_say_what_is_permitted(wrong, said):
    with pytest.raises(InvalidValueError, match=said):
        generate(**{"count": 1, **wrong})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # not ours: MONAI and what it imports
def test_ten_times_the_images_teach_far_more():
    # Measured once on a CPU (one training seed): 0.727 with 40 images, 0.839 with 400.
    few, many = _dice_after_training_on(40), _dice_after_training_on(400)
    assert 0.75 < many < 0.9
    assert many - few > 0.08


def _dice_after_training_on(count: int, steps: int = 700) -> float:
    """Mean Dice over 150 images of strangers, after the same number of steps whatever the count."""
    import torch
    from monai.losses import DiceCELoss
    from monai.networks.nets import BasicUNet

    def tensors(drawn):
        images = torch.from_numpy(drawn.images).float() / 127.5 - 1
        return images, torch.from_numpy(drawn.masks).float()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    images, masks = tensors(generate(count, seed=0))
    group_norm = ("group", {"num_groups": 8})
    net = BasicUNet(2, 3, 1, (16, 32, 64, 128, 256, 16), act="relu", norm=group_norm)
    loss_of = DiceCELoss(sigmoid=True)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps)
    for _ in range(steps):
        batch = []
        for row in rng.integers(count, size=16):
            both = torch.rot90(torch.cat([images[row], masks[row]]), int(rng.integers(4)), (1, 2))
            batch.append(both.flip(1) if rng.random() < 0.5 else both)
        seen, truth = torch.stack(batch).split([3, 1], dim=1)
        loss = loss_of(net(seen), truth)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    net.eval()
    images, masks = tensors(generate(150, seed=99))
    with torch.no_grad():
        found = torch.cat([net(part) for part in images.split(25)]) > 0
    overlap = (found * masks).sum((1, 2, 3))
    return float((2 * overlap / (found.sum((1, 2, 3)) + masks.sum((1, 2, 3)))).mean())


def test_one_image_of_each_patient():
    """The same patients, the first view of each."""
    once = generate(12, size=(32, 32), hospital="endoscopy", most_views=1)
    often = generate(40, size=(32, 32), hospital="endoscopy")
    assert len(set(once.patients)) == 12
    for row, name in enumerate(once.ids):
        assert np.array_equal(once.images[row], often.images[often.ids.index(name)])
    with pytest.raises(InvalidValueError, match="most_views"):
        generate(1, most_views=0)
