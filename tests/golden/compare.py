"""What differs between two records, field by field."""

import math
import re

# A deliberate change of names, old to new: a name of an entry, a dotted path to one or its end
# ("plan.unit"), or a whole value. What is pinned is read through it, so that a change of names
# shows as no difference, and the diff of a format is about the rest.
RENAMED: dict[str, str] = {}

VARIES = "(varies)"  # another one each time: secrets, and what follows from them
# What depends on noise and on measurements: digests and their beginnings, numbers in a text, and
# all numbers below these names. With the same noise on the same machine they are compared too.
HIDDEN = re.compile(
    r"\b[0-9a-f]{64}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{12}(?=…)|[\d⁻⁰¹²³⁴⁵⁶⁷⁸⁹][\d.,⁰¹²³⁴⁵⁶⁷⁸⁹]*"
)
MANY = re.compile("#(?:[, –]+#)*")
MEASURED = {"statistics", "mechanism", "first", "ends", "length"}
CLOSE, LAST_DIGITS = 1e-3, 1e-9


def leaves(value, path=()):
    """Every plain value by its path; an empty list or mapping is one too."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(each, (*path, str(name)))
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from leaves(each, (*path, f"[{number}]"))
    else:
        yield path, value


def renamed(value, names=None, path=()):
    """A record of old, with new names."""
    names = RENAMED if names is None else names
    if isinstance(value, dict):
        made = {}
        for name, each in value.items():
            here = (*path, str(name))
            ends = (".".join(here[start:]) for start in range(len(here)))
            new = next((names[end].split(".")[-1] for end in ends if end in names), str(name))
            made[new] = renamed(each, names, here)
        return made
    if isinstance(value, list):
        return [renamed(each, names, path) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def merged(one, other):
    """Two runs of the same release: what they do not have in common varies.

    So do all numbers of a list where one of them does: the others may agree by chance.
    """
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {name: merged(each, other[name]) for name, each in one.items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        made = [merged(*both) for both in zip(one, other, strict=True)]
        numbers = all(each == VARIES or isinstance(each, int | float) for each in made)
        return VARIES if numbers and VARIES in made else made
    return one if one == other or close(one, other, LAST_DIGITS) else VARIES


def differences(old, new, *, exactly=True):
    """Lines "path: old → new"; none where all is the same.

    Args:
        old: what is pinned.
        new: what was made now.
        exactly: with the same noise, by a machine that computes the same last bits; else digests,
            numbers on a card and the last digits of others may differ.
    """
    before, after = dict(leaves(renamed(old))), dict(leaves(new))
    varying = {path for path, value in before.items() if value == VARIES}
    found = []
    for path in [*before, *(path for path in after if path not in before)]:
        if any(path[:length] in varying for length in range(1, len(path) + 1)):
            if not any(each[: len(path)] == path for each in after):
                found.append(f"{'.'.join(path)}: {VARIES} → nothing")
            continue
        pair = before.get(path, "nothing"), after.get(path, "nothing")
        if pair[0] != pair[1] and (exactly or not alike(path, *pair)):
            found.append(f"{'.'.join(path)}: {pair[0]!r} → {pair[1]!r}")
    return found


def alike(path, one, other):
    """Whether the two differ no more than by noise, or by a machine's last bits."""
    if isinstance(one, str) and isinstance(other, str):
        one, other = (MANY.sub("#", HIDDEN.sub("#", each)) for each in (one, other))
        return one == other
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return close(one, other, CLOSE) or (numbers and not MEASURED.isdisjoint(path))


def close(one, other, how):
    """Whether two numbers are the same but for the last digits."""
    floats = isinstance(one, float) and isinstance(other, float)
    return floats and math.isclose(one, other, rel_tol=how, abs_tol=how)
