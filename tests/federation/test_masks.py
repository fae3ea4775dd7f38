"""Masks: one message is uniform, all of them add up exactly, and nothing less does."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from canal.errors import FederationError
from canal.federation.masks import Keys, add_up, mask

ALPHA = 1e-7  # false-alarm rate of each statistical test
NAMES = ("north", "south", "east", "west")
KEYS = {name: Keys.generate() for name in NAMES}


def roster(*names):
    return {name: KEYS[name].public for name in names}


def sent(values, context=b"batch 0"):
    """What every site sends, by name."""
    known = roster(*values)
    return {
        name: np.asarray(mine, dtype=np.int32).view(np.uint32)
        + mask(len(mine), name, KEYS[name], known, context)
        for name, mine in values.items()
    }


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_sums_are_exact_modulo_two_to_the_32(sites, seed):
    rng = np.random.default_rng(seed)
    values = {n: rng.integers(-(2**31), 2**31, 50, dtype=np.int64) for n in NAMES[:sites]}
    values = {name: mine.astype(np.int32) for name, mine in values.items()}
    want = sum(mine.astype(np.int64) for mine in values.values()).astype(np.int32)
    assert np.array_equal(add_up(sent(values), tuple(values)), want)


def uniform_p(words):
    """Least p-value over all four bytes of words: chi-square on 256 bins, Bonferroni."""
    found = []
    for place in range(4):
        counts = np.bincount((words >> (8 * place)) & 255, minlength=256)
        found.append(stats.chisquare(counts).pvalue)
    return 4 * min(found)


def test_one_message_is_uniform():
    zeros = dict.fromkeys(NAMES[:3], np.zeros(100_000, dtype=np.int32))
    messages = sent(zeros)
    for message in messages.values():
        assert uniform_p(message) > ALPHA
    for one, other in itertools.combinations(messages.values(), 2):
        assert uniform_p(one + other) > ALPHA  # two of three are not enough
    # The negative control: a mask of 24 bits.
    assert uniform_p(messages["north"] & 0x00FFFFFF) < ALPHA


@pytest.mark.parametrize("change", ["context", "roster", "key", "name"])
def test_any_other_circumstance_has_other_masks(change):
    base = mask(4, "north", KEYS["north"], roster(*NAMES[:3]), b"batch 0")
    known, context, keys, name = roster(*NAMES[:3]), b"batch 0", KEYS["north"], "north"
    if change == "context":
        context = b"batch 1"
    elif change == "roster":
        known = roster(*NAMES)
    elif change == "key":
        keys = Keys.generate()
        known = known | {"north": keys.public}
    else:
        known = {"earth" if n == "east" else n: key for n, key in known.items()}
    assert (mask(4, name, keys, known, context) != base).all()
    again = mask(4, "north", KEYS["north"], roster(*NAMES[:3]), b"batch 0")
    assert np.array_equal(again, base)


def test_names_and_contexts_cannot_be_taken_for_each_other():
    one = mask(4, "a", KEYS["north"], {"a": KEYS["north"].public, "bc": KEYS["east"].public}, b"x")
    two = mask(4, "a", KEYS["north"], {"a": KEYS["north"].public, "b": KEYS["east"].public}, b"cx")
    assert (one != two).all()


def test_a_sum_of_fewer_is_never_made():
    messages = sent({name: [1, 2] for name in NAMES[:3]})
    fewer = {name: messages[name] for name in NAMES[:2]}
    with pytest.raises(FederationError, match="2 of 3 sites sent their part; east did not"):
        add_up(fewer, NAMES[:3])
    with pytest.raises(FederationError, match="west is not in the roster"):
        add_up(messages | {"west": messages["east"]}, NAMES[:3])
    short = messages | {"east": messages["east"][:1]}
    with pytest.raises(FederationError, match="different kinds"):
        add_up(short, NAMES[:3])


def test_who_is_refused():
    known = roster(*NAMES[:2])
    with pytest.raises(FederationError, match="another key for 'north'"):
        mask(1, "north", KEYS["east"], known, b"")
    with pytest.raises(FederationError, match="two sites or more"):
        mask(1, "north", KEYS["north"], roster("north"), b"")
    twice = known | {"east": KEYS["south"].public}
    with pytest.raises(FederationError, match="a key of its own"):
        mask(1, "north", KEYS["north"], twice, b"")
    for public in (bytes(32), b"short"):  # the first makes every secret the same
        with pytest.raises(FederationError, match="cannot be used"):
            mask(1, "north", KEYS["north"], known | {"south": public}, b"")


def test_private_keys_stay_private():
    assert KEYS["north"].private.hex() not in repr(KEYS["north"])
    assert "private" not in repr(KEYS["north"])


def test_memory_is_a_few_copies():
    tracemalloc.start()
    mask(1 << 20, "north", KEYS["north"], roster(*NAMES), b"")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * (4 << 20)
