"""Near-duplicates: found through noise, crops of brightness and size; strangers stay strangers."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from canal.data.case import Case
from canal.data.duplicates import connected, near_duplicates, similar_pairs, thumbnail, thumbnails
from canal.data.readers import read


def _case(folder, name):
    return Case(name, (folder.root / name,), (), patient=name)


def _smooth(seed, size=(96, 80)):
    small = np.random.default_rng(seed).integers(30, 220, (6, 5, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def test_copies_are_found_and_strangers_are_not(folder):
    original = _smooth(1)
    pixels = np.asarray(original).astype(float)
    noise = np.random.default_rng(2).normal(0, 8, pixels.shape)
    folder.at("original.png")
    original.save(folder.root / "original.png")
    original.resize((60, 50)).save(folder.root / "small.jpg", quality=50)
    folder.pixels("noisy.png", np.clip(pixels + noise, 0, 255))
    folder.pixels("darker.png", 0.7 * pixels + 10)
    original.convert("L").save(folder.root / "grey.png")
    original.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder.root / "turned.png")
    _smooth(3).save(folder.root / "stranger.png")
    copies = ("darker.png", "grey.png", "noisy.png", "original.png", "small.jpg")
    cases = [_case(folder, name) for name in (*copies, "turned.png", "stranger.png")]
    assert near_duplicates(cases) == [copies]
    assert near_duplicates(cases[::-1]) == [copies]


def test_volumes_are_compared_too(folder):
    rng = np.random.default_rng(1)
    volume = rng.normal(size=(12, 12, 12)).astype(np.float32)
    folder.volume("a.nii.gz", volume)
    folder.volume("b.nii.gz", 3 * volume + 100)
    folder.volume("c.nii.gz", rng.normal(size=(12, 12, 12)).astype(np.float32))
    cases = [_case(folder, f"{name}.nii.gz") for name in "abc"]
    assert near_duplicates(cases) == [("a.nii.gz", "b.nii.gz")]


def test_images_of_one_colour_resemble_nothing(folder):
    folder.pixels("black.png", np.zeros((20, 20)))
    folder.pixels("white.png", np.full((20, 20), 255))
    folder.image("other.png")
    names = ("black.png", "white.png", "other.png")
    assert near_duplicates([_case(folder, name) for name in names]) == []


def test_every_image_is_counted_once(folder):
    for name in "abc":
        folder.image(f"{name}.png")
    steps = []
    near_duplicates([_case(folder, f"{name}.png") for name in "abc"], progress=steps.append)
    assert steps == [1, 1, 1]


def test_a_thumbnail_has_mean_zero_and_norm_one(folder):
    folder.image("a.png")
    small = thumbnail(_case(folder, "a.png"))
    assert small.shape == (32 * 32,)
    assert small.mean() == pytest.approx(0, abs=1e-6)
    assert np.linalg.norm(small) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("block", [1, 3, 7, 1000])
def test_pairs_do_not_depend_on_the_blocks(monkeypatch, block):
    monkeypatch.setattr("canal.data.duplicates._BLOCK", block)
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = [(a, b) for a, b in combinations(range(20), 2) if rows[a] @ rows[b] > 0.9]
    assert len(expected) > 3
    assert sorted(similar_pairs(rows, 0.9)) == expected


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=20))
def test_components_are_those_of_scipy(pairs):
    found = connected(pairs, range(15))
    edges = np.array(pairs, int).reshape(-1, 2)
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(15, 15))
    count, label = connected_components(graph, directed=False)
    assert len(found) == count
    assert sorted(member for group in found for member in group) == list(range(15))
    assert all(len({label[member] for member in group}) == 1 for group in found)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("Dataset_BUSI_with_GT", "near-duplicates-busi.txt"),
        ("ISIC2018", "near-duplicates-isic2018.txt"),
        ("Kvasir-SEG", "near-duplicates-kvasir.txt"),
    ],
)
def test_real_near_duplicates_are_found(real, name, listed):
    cases = read(real / name).cases
    found = {pair for group in near_duplicates(cases) for pair in combinations(group, 2)}
    lines = (real / listed).read_text().splitlines()
    known = {
        pair
        for line in lines
        if line.strip()
        for pair in combinations(sorted(part.strip() for part in line.split(" | ")), 2)
    }
    assert len(known & found) >= 0.95 * len(known) > 0
    assert len(found) < 2 * len(known) + 10  # nor is everything alike


@pytest.mark.parametrize("shape", [(64, 64), (96, 80), (20, 33), (24, 24, 24)])
def test_thumbnails_of_decoded_images_find_the_same_twins(shape):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 200, (6, 3, *shape), np.uint8)
    images[4] = images[1] + 20
    images[5] = 255 - images[1]
    found = thumbnails(images)
    assert found.shape[1] == np.prod([min(32 if len(shape) == 2 else 16, side) for side in shape])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    assert similar_pairs(found, 0.975) == [(1, 4)]


def test_a_thumbnail_is_a_mean_over_blocks():
    image = np.arange(64 * 64, dtype=np.float64).reshape(1, 1, 64, 64) % 251
    blocks = image.reshape(32, 2, 32, 2).mean(axis=(1, 3)).ravel()
    blocks -= blocks.mean()
    found = thumbnails(image.astype(np.uint8))[0]
    np.testing.assert_allclose(found, blocks / np.linalg.norm(blocks), atol=1e-6)
