"""Ways to change a published release: damage to its bytes, forgery of its meaning."""

import copy
import json
import sqlite3
from contextlib import closing

import numpy as np

from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan
from canal.features.statistics import Statistics
from canal.features.store import Release
from canal.privacy.chain import GENESIS, Row
from canal.privacy.randomness import Secret
from canal.release.manifest import CARD, MANIFEST
from canal.release.shard import write_shard
from canal.release.statement import Facts, state

# Damage: any file, any bytes.


def any_file(rng, victim):
    """One of the files, the ledger as often as all others together."""
    names = [MANIFEST, CARD, *victim.shards]
    return victim.ledger if rng.random() < 0.4 else victim.folder / rng.choice(names)


def flip_bits(rng, victim):
    path = any_file(rng, victim)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def overwrite_a_stretch(rng, victim):
    path = any_file(rng, victim)
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    stop = min(len(content), start + rng.choice((1, 4, 64, 4096)))
    content[start:stop] = rng.choice((rng.randbytes(stop - start), bytes(stop - start)))
    path.write_bytes(content)


def cut_the_tail(rng, victim):
    path = any_file(rng, victim)
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice((0, rng.randrange(len(content)), len(content) - 1))])


def add_or_drop_a_byte(rng, victim):
    path = any_file(rng, victim)
    content = path.read_bytes()
    at = rng.randrange(len(content))
    more = rng.choice((b"", rng.randbytes(1), b" ", b"\n"))
    path.write_bytes(content[:at] + more + content[at + (not more) :] + rng.choice((b"", more)))


def remove_a_file(rng, victim):
    any_file(rng, victim).unlink()


def add_a_file(rng, victim):
    (victim.folder / rng.choice((".hidden", "features-00003.safetensors", "notes.txt"))).touch()


def swap_two_shards(rng, victim):
    one, other = rng.sample(victim.shards[:2], 2)
    (victim.folder / one).write_bytes(victim.whole[other])
    (victim.folder / other).write_bytes(victim.whole[one])


def edit_a_digit(rng, victim):
    """In the manifest, as somebody would with a text editor."""
    content = bytearray(victim.whole[MANIFEST])
    at = rng.choice([at for at, byte in enumerate(content) if chr(byte).isdigit()])
    content[at] = ord(rng.choice([digit for digit in "0123456789" if ord(digit) != content[at]]))
    (victim.folder / MANIFEST).write_bytes(content)


# Forgery: what the manifest says, with every digest computed anew.

STRANGE = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.0, 0.5, -2.5, 1e-300, 1e308),
    *("", "1", "patient", "../x", "\x00", "\ud800", [], [0], [0, 1], [[]], {}, {"a": 1}),
)


def other_value(rng, value):
    """Something else: near by, or strange."""
    if isinstance(value, bool) or value is None or rng.random() < 0.3:
        return rng.choice([odd for odd in STRANGE if json.dumps(odd) != json.dumps(value)])
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 7))
    if isinstance(value, float):
        return value * rng.choice((0.5, 2.0, 1 + 1e-12)) if value else 1e-3
    if isinstance(value, str):
        return rng.choice((value + "x", value[:-1] or "y", value.swapcase() + "é"))
    if isinstance(value, list) and value:
        return rng.choice((value[:-1], value + value[:1], [*value[1:], value[0], value[0]]))
    if isinstance(value, dict) and value:
        dropped = rng.choice(list(value))
        return {name: kept for name, kept in value.items() if name != dropped}
    return "something"


def forge_anything(rng, victim):
    """One value anywhere in the manifest."""
    content = victim.content()
    inside, at = content, rng.choice(list(content))
    while isinstance(inside[at], dict | list) and inside[at] and rng.random() > 0.1:
        inside = inside[at]
        at = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    inside[at] = other_value(rng, inside[at])
    victim.forge(content)


def forge_the_budget(rng, victim):
    """A smaller epsilon than was paid for, and every promise derived from it as we do."""
    content = victim.content()
    content["plan"]["epsilon"] *= rng.choice((0.1, 0.5, 0.9))
    victim.forge(derived_anew(content))


def forge_a_research_run(rng, victim):
    """Noise from a seed, which is charged to nobody; all promises withdrawn."""
    content = victim.content() | {"private": False, "ledger": None}
    content["noise"]["source"] = Secret.seeded(0).source
    victim.forge(derived_anew(content))


def derived_anew(content):
    """Everything that follows from the plan and the statistics."""
    plan = Plan.from_json(content["plan"])
    statistics = Statistics.from_json(content["statistics"])
    mechanism = TeacherSum.of(plan.calibrate(statistics.weights(plan)), statistics)
    noise, cohorts = content["noise"], tuple(content["participants"]["cohorts"])
    facts = Facts(content["private"], noise["source"], noise["sampler"], cohorts)
    statement = state(mechanism.calibrated, facts)
    return content | {"mechanism": mechanism.to_json(), "statement": statement}


def forge_the_noise(rng, victim):
    """Less noise in the numbers than there is in the data, or the reverse."""
    content = victim.content()
    name = rng.choice(("sigma", "caps", "scale", "weights"))
    factor = rng.choice((0.5, 1.01, 1 + 1e-6))
    content["mechanism"][name] = [value * factor for value in content["mechanism"][name]]
    victim.forge(content)


def forge_the_ids(rng, victim):
    content = victim.content()
    places = content["rows"]
    one, other = rng.sample(sorted(places), 2)
    kind = rng.choice(("swap", "rename", "drop", "double", "order"))
    if kind == "swap":
        places[one], places[other] = places[other], places[one]
    elif kind == "rename":
        places["case-999"] = places.pop(one)
    elif kind == "drop":
        del places[one]
    elif kind == "double":
        places["case-999"] = places[one]
    else:
        content["rows"] = dict(sorted(places.items(), reverse=True))
    victim.forge(content)


def forge_swapped_shards(rng, victim):
    """Two shards change places together with their digests."""
    content = victim.content()
    swap_two_shards(rng, victim)
    one, other = content["shards"][:2]
    one["file"], other["file"] = other["file"], one["file"]
    content["shards"][:2] = other, one
    victim.forge(content)


def forge_a_shard(rng, victim):
    """Other integers, in a file that is well made and has the digest that the manifest says."""
    content = victim.content()
    number = rng.randrange(3)
    integers = np.array(list(Release.open(victim.folder).shards())[number])
    integers.flat[rng.randrange(integers.size)] += 1
    made = write_shard(victim.folder / victim.shards[number], integers, "")
    content["shards"][number] = made.to_json()
    victim.forge(content)


def forge_that_nothing_was_charged(rng, victim):
    victim.forge(victim.content() | {"ledger": None})


def forge_the_charges(rng, victim):
    content = victim.content()
    made = content["ledger"]["charges"]
    kind = rng.choice(("less", "fewer", "none", "key", "twice"))
    if kind == "less":
        made[0]["rho"] *= 0.5
    elif kind == "fewer":
        made.pop()
    elif kind == "none":
        made.clear()
    elif kind == "key":
        content["ledger"]["key"] = rng.randbytes(32).hex()
    else:
        made.append(made[0])
    victim.forge(content)


# Forgery of the ledger: a row changed, removed or added, the chain computed anew or not.


def edit_the_ledger(rng, victim, *, anew):
    rows = copy.copy(victim.rows)
    at = rng.randrange(len(rows))
    kind = rng.choice(("edit", "drop", "double", "swap"))
    if kind == "edit":
        values = vars(rows[at]).copy()
        name = rng.choice(("at", "action", "cohort", "unit", "rho", "draws", "key", "note"))
        values[name] = {
            "action": rng.choice(
                [a for a in ("budget", "reserve", "commit", "x") if a != values[name]]
            )
            if name == "action"
            else None,
            "rho": values["rho"] * rng.choice((0.5, 1 + 1e-9, 2.0)),
            "draws": values["draws"] + 1,
        }.get(name) or f"{values[name]}x"
        rows[at] = Row(**values)
    elif kind == "drop":
        del rows[at]
    elif kind == "double":
        rows.insert(at, rows[at])
    else:
        other = rng.choice([number for number in range(len(rows)) if number != at])
        rows[at], rows[other] = rows[other], rows[at]
    write_rows(victim.ledger, rows, anew=anew)


def write_rows(path, rows, *, anew):
    previous = GENESIS
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM chain")
        for number, row in enumerate(rows, start=1):
            values = vars(row) | {"seq": number}
            if anew:
                values["hash"] = Row(**values).digest(previous)
            previous = values["hash"]
            insert = "INSERT INTO chain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            connection.execute(insert, tuple(values.values()))
        connection.execute("UPDATE head SET seq = ?, hash = ?", (len(rows), previous))


def edit_a_row(rng, victim):
    edit_the_ledger(rng, victim, anew=False)


def edit_a_row_and_the_chain(rng, victim):
    edit_the_ledger(rng, victim, anew=True)


DAMAGE = (
    *(flip_bits, overwrite_a_stretch, cut_the_tail, add_or_drop_a_byte, remove_a_file, add_a_file),
    *(swap_two_shards, edit_a_digit),
)
FORGERY = (
    *(forge_anything, forge_anything, forge_anything, forge_anything, forge_the_budget),
    *(forge_a_research_run, forge_the_noise, forge_the_ids, forge_swapped_shards, forge_a_shard),
    *(forge_that_nothing_was_charged, forge_the_charges, edit_a_row, edit_a_row_and_the_chain),
)
