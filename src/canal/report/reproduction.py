"""How to do it again: what was typed, by which software, from which seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from canal.release.digits import number
from canal.release.page import code, note, section, table
from canal.report.published import names
from canal.report.run import COMMANDS, Network, Run
from canal.version import __version__

TITLE = "How to reproduce it"
DIGEST_LETTERS = 12


def render(run: Run) -> str:
    """The section."""
    return section(TITLE, *_content(run), style="wide long")


def _content(run: Run) -> Iterator[str]:
    if run.commands:
        yield f"<pre><code>{escape(run.commands)}</code></pre>"
    else:
        yield note(f"Nobody wrote down what was typed; lines of {COMMANDS} in the run appear here.")
    made = sorted({each.release.manifest.software for each in run.releases})
    by = f", releases made by {escape(', '.join(made))}" if made else ""
    yield f"<p>Report by canal {escape(__version__)}{by}.</p>"
    if run.networks:
        yield f"<p>{_starts(run.networks)}</p>"
        head = ("Network", "Images", "Steps", "Batch", "Seed")
        rows = [_trained(network) for network in run.networks]
        yield table(head, rows, numbers=range(1, 5), style="reflow narrow")
    if run.releases:
        called = names(run.releases)
        rows = [
            (
                f"{code(each.where)}<small>{escape(called[each.where])}</small>",
                code(_short(each.digest)),
            )
            for each in run.releases
        ]
        yield table(("Release", "Digest"), rows, style="narrow")
    yield note(f"Digests are shortened. {_again(run)}")


def _again(run: Run) -> str:
    noisy = [each for each in run.releases if each.noisy]
    same = "On the same machine, with as many threads, the same commands give the same networks"
    if not noisy:
        return f"{same}."
    if all(each.stamp for each in noisy):
        return f"{same}; the noise is seeded too, so it comes again."
    return f"{same}; the noise comes from a secret, so another run differs by that noise."


def _trained(network: Network) -> tuple[str, ...]:
    notes, training = network.about.notes, network.training
    role = str(notes.get("mode") or network.role)
    seed = training.get("seed", notes.get("seed"))
    # How many images a hospital has is not for a page that others read.
    own = network.role == "teacher" or role == "pooled"
    images = None if own else notes.get("images")
    counted = (images, training.get("steps"), training.get("batch_size"), seed)
    words = f"student, {role}" if network.role == "student" else role
    return (
        f"{code(network.where)}<small>{escape(words)}</small>",
        *(number(each) if isinstance(each, int) else "–" for each in counted),
    )


def _starts(networks: Iterable[Network]) -> str:
    """The initialisation that networks were trained from; more than one is worth a word."""
    starts = sorted({network.about.initialisation for network in networks})
    listed = ", ".join(code(_short(start)) for start in starts)
    if len(starts) == 1:
        return f"All networks start from the initialisation {listed}"
    return f"Networks start from different initialisations: {listed}"


def _short(digest: str) -> str:
    return f"{digest[:DIGEST_LETTERS]}…"
