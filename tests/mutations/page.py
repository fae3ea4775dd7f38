"""`docs/mutations.md`, written from the table: which bugs were planted, and what notices each."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from mutations.table import CHECKS, KINDS, MUTANTS, Mutant  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "mutations.md"

_HEAD = """# Planted bugs

Do the checks see a mistake in the code? One bug at a time is planted in a copy of `src/canal`, in
the code that makes releases and in the code that checks them, since a real mistake is in both. Tiny
releases are made with it, of every kind that the bug can touch: features at the level of patients,
of images and of the paper, gradient rounds under both neighbour relations, secure sums of three
hospitals. Then `canal audit`, `canal release verify` and the named tests are run, and those below
must notice.

- **audit**: `canal audit RELEASE`, without anything private.
- **verify**: `canal release verify`, with the ledger and the public inputs.
- **residue**: `canal audit` of those who hold the teachers, or the patients of a site (what each
  of them added).
- a **test** that is meant for the bug, where no check of a finished release can see it.

Without a bug none of them raises an alarm, in three runs of every release.

`pytest tests/mutations -m slow` plants all of them; `-k NAME` plants one. `python
tests/mutations/page.py` writes this page from `tests/mutations/table.toml`.
"""


def written() -> str:
    """The page."""
    by_checks = sum(bool(mutant.checks) for mutant in MUTANTS)
    parts = [
        _HEAD,
        f"{len(MUTANTS)} bugs; {by_checks} are noticed by audit, verify or residue, "
        f"{len(MUTANTS) - by_checks} by tests alone.\n",
        "| kind | bugs | " + " | ".join(CHECKS) + " | a test |",
        "|---|--:|" + "--:|" * (len(CHECKS) + 1),
    ]
    for kind in KINDS:
        mine = [mutant for mutant in MUTANTS if mutant.kind == kind]
        counts = [sum(check in mutant.by for mutant in mine) for check in CHECKS]
        counts.append(sum(bool(mutant.tests) for mutant in mine))
        parts.append(f"| {kind} | {len(mine)} | " + " | ".join(map(str, counts)) + " |")
    for kind in KINDS:
        parts += [
            f"\n## {kind.capitalize()}\n",
            "| bug | what it does | noticed by |",
            "|---|---|---|",
        ]
        parts += [_row(mutant) for mutant in MUTANTS if mutant.kind == kind]
    return "\n".join(parts) + "\n"


def _row(mutant: Mutant) -> str:
    by = [f"**{check}**" for check in mutant.checks]
    by += [f"`{test.removeprefix('tests/')}`" for test in mutant.tests]
    return f"| {mutant.name} | {mutant.harm} | {', '.join(by)} |"


if __name__ == "__main__":
    PAGE.write_text(written())
