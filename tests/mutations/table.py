"""The table of planted bugs: what each changes, whom it harms, and what must notice it."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
KINDS = (
    *("accounting", "conversion", "clipping", "counting", "summing"),
    *("noise", "secrets", "public inputs", "ledger"),
)
# What looks at a release that was made; anything else is a test that is meant for the bug.
CHECKS = ("audit", "verify", "residue")


@dataclass(frozen=True)
class Edit:
    """One replacement.

    Args:
        file: below `src/canal`.
        old: that occurs there exactly once.
        new: in its place.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Args:
        name: of it.
        kind: one of `KINDS`.
        harm: what it does to a patient, in a sentence.
        by: what must notice it: some of `CHECKS`, or tests.
        scenarios: releases that it can touch.
        edits: that plant it.
    """

    name: str
    kind: str
    harm: str
    by: tuple[str, ...]
    scenarios: tuple[str, ...]
    edits: tuple[Edit, ...]

    @property
    def checks(self) -> tuple[str, ...]:
        """Those of `by` that look at a release."""
        return tuple(each for each in self.by if each in CHECKS)

    @property
    def tests(self) -> tuple[str, ...]:
        """The others."""
        return tuple(each for each in self.by if each not in CHECKS)

    def plant(self, into: Path) -> Path:
        """A copy of the source with this bug in it.

        Args:
            into: a new folder.
        """
        shutil.copytree(SOURCE, into)
        for edit in self.edits:
            path = into / "canal" / edit.file
            text = path.read_text()
            found = text.count(edit.old)
            if found != 1:
                raise LookupError(
                    f"{self.name}: its text is {found} times in {edit.file}, not once; the code "
                    f"moved, and the table has to follow:\n{edit.old}"
                )
            path.write_text(text.replace(edit.old, edit.new))
        return into


def read(path: Path = HERE / "table.toml") -> tuple[Mutant, ...]:
    """All of them, in the order of the file."""
    return tuple(
        Mutant(
            entry["name"],
            entry["kind"],
            entry["harm"],
            tuple(entry["by"]),
            tuple(entry.get("scenarios", ())),
            tuple(Edit(**each) for each in entry["edit"]),
        )
        for entry in tomllib.loads(path.read_text())["mutant"]
    )


MUTANTS = read()
