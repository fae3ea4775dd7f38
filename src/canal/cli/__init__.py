"""The command line: parse, call, print. No logic, and nothing heavy is imported to say hello."""

from __future__ import annotations

import sys

import typer

from canal.cli.account import account
from canal.cli.adapters import adapters_app
from canal.cli.attack import attack_app
from canal.cli.audit import audit
from canal.cli.data import data_app
from canal.cli.demo import demo
from canal.cli.federation import federation_app
from canal.cli.ledger import ledger_app
from canal.cli.plan import plan
from canal.cli.release import release_app
from canal.cli.report import report
from canal.cli.statistics import statistics_app
from canal.cli.student import student_app
from canal.cli.teacher import init, teacher_app
from canal.errors import CanalError

app = typer.Typer(
    name="canal",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Hospitals share what their segmentation models learned, without exposing a patient.",
)
app.command("demo")(demo)
app.add_typer(data_app, name="data")
app.add_typer(statistics_app, name="statistics")
app.command("init")(init)
app.add_typer(teacher_app, name="teacher")
app.command("plan")(plan)
app.add_typer(release_app, name="release")
app.add_typer(adapters_app, name="adapters")
app.command("account")(account)
app.add_typer(federation_app, name="federation")
app.add_typer(student_app, name="student")
app.add_typer(attack_app, name="attack")
app.command("audit")(audit)
app.add_typer(ledger_app, name="ledger")
app.command("report")(report)


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
