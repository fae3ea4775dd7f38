"""Bytes of a release of adapters that are changed, gone or too many: found, and never a crash."""

import copy
import json
import random
from contextlib import suppress

import pytest

from canal.errors import CanalError, ReleaseError
from canal.gradients.store import AdapterRelease
from canal.release.manifest import CARD, MANIFEST
from canal.release.verification import account


@pytest.mark.parametrize("number", range(3))
def test_a_flipped_byte_of_a_round(number, victim):
    file = victim.folder / victim.shards[number]
    for at in (0, 9, len(victim.whole[file.name]) // 2, -1):
        content = bytearray(victim.whole[file.name])
        content[at] ^= 1
        file.write_bytes(content)
        assert "rounds" in victim.failed(ledger=False)
        with pytest.raises(ReleaseError):
            AdapterRelease.open(victim.folder).sums(number)


@pytest.mark.parametrize("name", [MANIFEST, CARD])
def test_any_flipped_byte_of_the_manifest_or_the_card(name, victim):
    rng = random.Random(1)
    for _ in range(15):
        content = bytearray(victim.whole[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (victim.folder / name).write_bytes(content)
        assert victim.failed(ledger=False) == [{MANIFEST: "manifest", CARD: "card"}[name]]


def test_files_that_are_missing_or_too_many(victim):
    (victim.folder / "notes.txt").touch()
    assert victim.failed(ledger=False) == ["files"]
    (victim.folder / "notes.txt").unlink()
    (victim.folder / victim.shards[0]).unlink()
    assert "files" in victim.failed(ledger=False)
    victim.heal()
    (victim.folder / CARD).unlink()
    assert victim.failed(ledger=False) == ["files", "card"]
    (victim.folder / MANIFEST).unlink()
    assert victim.failed(ledger=False) == ["manifest"]


STRANGE = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.0, 0.5, -2.5, 1e-300, 1e308),
    *("", "1", "patient", "../x", "\x00", [], [0], [0, 1], [[]], {}, {"a": 1}),
)


@pytest.mark.parametrize("seed", range(2))
def test_anything_anywhere(seed, victim):
    """One value of the manifest becomes another, near by or strange: found, and never a crash."""
    rng = random.Random(seed)
    for _ in range(35):
        content = victim.content()
        inside, at = content, rng.choice(list(content))
        while isinstance(inside[at], dict | list) and inside[at] and rng.random() > 0.1:
            inside = inside[at]
            at = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        before = copy.deepcopy(inside[at])
        near = before * 2 if isinstance(before, int | float) and before else "something"
        inside[at] = rng.choice((near, rng.choice(STRANGE)))
        if json.dumps(inside[at]) == json.dumps(before):
            continue
        victim.forge(content)
        assert victim.failed(), f"{at}: {before!r} became {inside[at]!r}"
        with suppress(CanalError):
            account(AdapterRelease.open(victim.folder))
        victim.heal()
