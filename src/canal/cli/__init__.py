"""The command line: parse, call, print. No logic; a command is imported when it is called."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from canal.errors import CanalError
from canal.lazy import Deferred

# By name: where the command is, or the group of commands, and what it is for.
COMMANDS = {
    "demo": ("demo:demo", "Three synthetic hospitals, from scans to a report, in a few minutes."),
    "data": ("data:data_app", "Look at a data set, split it without leaks, or make one."),
    "statistics": ("statistics:statistics_app", "Noisy counts and histograms of the cohorts."),
    "init": ("teacher:init", "Make the weights that all teachers start from."),
    "teacher": ("teacher:teacher_app", "Train a teacher at a site, and measure it."),
    "plan": ("plan:plan", "Say what a release will cost and carry, before any data is touched."),
    "release": ("release:release_app", "Make a release, check it, read its card."),
    "adapters": ("adapters:adapters_app", "Release noisy sums of patients' gradients; use them."),
    "account": (
        "account:account",
        "Say what a release costs: epsilon in every unit, part by part.",
    ),
    "federation": ("federation:federation_app", "Release across hospitals, on NVIDIA FLARE."),
    "student": ("student:student_app", "Train the recipient's student on a release, and use it."),
    "attack": ("attack:attack_app", "Attack a release, to see what it gives away."),
    "audit": ("audit:audit", "Test the epsilon that a release states."),
    "ledger": ("ledger:ledger_app", "Budgets, what was spent, and whether anyone edited it."),
    "report": ("report:report", "Write what a run found as one page."),
}


class Commands(TyperGroup):
    """Commands that are imported when they are called, and listed without."""

    _listing = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # For suggestions where a name is misspelt.
        self.commands = {
            name: TyperCommand(name, help=words) for name, (_, words) in COMMANDS.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Names, in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """A command; for a list of all, its name and what it is for."""
        if self._listing or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        home, words = COMMANDS[cmd_name]
        found: Any = Deferred(f"canal.cli.{home}").function
        if not isinstance(found, typer.Typer):
            only = typer.Typer()
            only.command(cmd_name)(found)
            found = only
        found._add_completion = False  # the root has it
        made: Any = typer.main.get_command(found)
        made.name = cmd_name
        made.help = made.help or words
        return made

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands, and import none."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


app = typer.Typer(
    name="canal",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Hospitals share what their segmentation models learned, without exposing a patient.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from canal.version import __version__

        typer.echo(f"canal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line; what a person can mend is one sentence and exit code 2."""
    try:
        app()
    except CanalError as error:
        typer.secho(f"canal: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"canal: {where}{error.strerror or error}; give another place, or mend that one"
        typer.secho(message, fg=typer.colors.RED, err=True)
        sys.exit(2)
