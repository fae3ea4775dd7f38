"""The headline: what was done in one sentence, and the two numbers that matter."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from canal.release.card import FOR_WHOM
from canal.release.digits import number, upwards
from canal.release.page import text
from canal.report.arms import Arms, main_release, release_order
from canal.report.benefit import points, verdicts_of
from canal.report.protection import replaced
from canal.report.published import Published, PublishedAdapters, names
from canal.report.run import Run

_WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def render(run: Run, arms: Arms) -> str:
    """The top of the page."""
    figures = "".join(_figures(run, arms)) or "<span><b>Nothing measured yet</b></span>"
    sentences = [done(run)]
    main = arms.main
    if main is not None:
        sentences += list(verdicts_of(main, arms))[:2]
    lede = "".join(f'<p class="lede">{text(sentence)}</p>\n' for sentence in sentences)
    return (
        f'<header>\n<p class="kind">Report of a CANAL run</p>\n<h1>{figures}</h1>\n{lede}</header>'
    )


def done(run: Run) -> str:
    """What was done, from facts alone."""
    parts = [*_hospitals(run), *_recipient(run), *_taught(run), *_released(run)]
    return " ".join(parts)


def _hospitals(run: Run) -> Iterator[str]:
    teachers = run.having("teacher")
    if not teachers:
        return
    # How many images each has is the size of its cohort, which nobody else is to know.
    each = [str(teacher.about.notes.get("site") or teacher.where) for teacher in teachers]
    several = len(teachers) > 1
    yield (
        f"{_number(len(teachers))} hospital{'s' * several} ({_listed(each)}) trained "
        f"{'teachers' if several else 'a teacher'}."
    )


def _recipient(run: Run) -> Iterator[str]:
    students = [
        student for student in run.having("student") if student.about.notes.get("mode") != "pooled"
    ]
    queries = sorted({each.plan.participants.queries for each in run.features})
    labels = sorted(
        {
            notes["labelled"]
            for notes in (student.about.notes for student in students)
            if isinstance(notes.get("labelled"), int)
        }
    )
    if not (queries or labels):
        return
    asked = f" asked about {_either(queries)} query images" if queries else ""
    labelled = f" {'and ' if queries else ''}has labels of {_either(labels)}" if labels else ""
    yield f"A recipient{asked}{labelled}."


def _taught(run: Run) -> Iterator[str]:
    """How adapters came about, once for all that came about alike."""
    told = (
        f"Patients of {_number(each.plan.sites).lower()} hospital{'s' * (each.plan.sites > 1)}, "
        f"{_patients(each)}, taught {_count(each.plan.parameters, 'parameter')} of the shared "
        f"network in {_count(each.plan.rounds, 'round')}{_directions(each)}."
        for each in sorted(run.adapters, key=release_order)
    )
    yield from dict.fromkeys(told)


def _directions(published: PublishedAdapters) -> str:
    found = published.plan.directions
    return f", in {_count(found, 'direction')} of a public basis" if found else ""


def _patients(published: PublishedAdapters) -> str:
    found = number(round(published.release.patients))
    return f"about {found} as counted with noise" if published.plan.count else f"{found} as stated"


def _released(run: Run) -> Iterator[str]:
    if not run.releases:
        yield "Nothing was released."
        return
    called = names(run.releases)
    listed = _listed([called[each.where] for each in sorted(run.releases, key=release_order)], "; ")
    several = len(run.releases) > 1
    yield f"{_number(len(run.releases))} release{'s were' if several else ' was'} made: {listed}."


def _figures(run: Run, arms: Arms) -> Iterator[str]:
    main = arms.main
    if main is not None:
        alone = arms.alone(main)
        before = "" if alone is None else f"{points(alone.dice)} → "
        words = "Dice of the student" + (" alone, then" if alone else "")
        yield (
            f"<span><b>{before}{points(main.dice)}</b> {words} with {escape(main.name)}; "
            f"mean of {number(main.images)} test images</span>"
        )
    published = main_release(run, arms)
    if published is not None:
        yield _epsilon(published)


def _epsilon(published: Published) -> str:
    epsilon = published.epsilon(published.patient)
    if epsilon is not None:
        other = replaced(published)
        return (
            f"<span><b>ε = {number(upwards(epsilon))}</b> {FOR_WHOM[published.patient]}, by "
            f"that release, at δ = {number(published.plan.delta)}"
            + (f"; {other}" if other else "")
            + "</span>"
        )
    would = published.epsilon_if_secret(published.patient) if published.noisy else None
    why = (
        "no noise was added"
        if not published.noisy
        else "the noise is seeded"
        + ("" if would is None else f"; a secret would have given ε = {number(upwards(would))}")
    )
    return f"<span><b>No guarantee</b> for a patient, by that release: {why}</span>"


def _number(count: int) -> str:
    return _WORDS[count] if count < len(_WORDS) else number(count)


def _count(count: object, what: str) -> str:
    if not isinstance(count, int):
        return f"an unknown number of {what}s"
    return f"{number(count)} {what}{'s' * (count != 1)}"


def _either(counts: list[int]) -> str:
    return " or ".join(number(count) for count in counts)


def _listed(items: list[str], comma: str = ", ") -> str:
    if len(items) < 2:
        return "".join(items)
    return f"{comma.join(items[:-1])} and {items[-1]}"
