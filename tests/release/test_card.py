"""The privacy card: it says what the manifest says, to everyone, and cannot be made to say more."""

import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan
from canal.features.statistics import Statistic, Statistics
from canal.privacy import UNITS, Participants
from canal.release.card import MOST_SHARDS, render
from canal.release.digits import percent, prose
from canal.release.manifest import MANIFEST, SOFTWARE, Manifest
from canal.release.statement import Facts, state
from reading import Page, near, value

SVG = "{http://www.w3.org/2000/svg}"
CASES = {
    "honest": {},
    "paper": {"preset": "paper"},
    "image": {"unit": "image"},
    "uniform": {"allocation": "uniform"},
    "one channel": {"channels": 4, "released": 1},
    "all channels": {"channels": 512, "released": 512},
    "one query": {"preset": "paper", "queries": 1},
    "many queries": {"queries": 5000},
    "little noise": {"epsilon": 1e6, "preset": "paper"},
    "much noise": {"epsilon": 0.01},
    "no noise": {"allocation": "none"},
    "seeded": {"seeded": True},
}
NOT_PRIVATE = ("no noise", "seeded")
PRIVATE = tuple(name for name in CASES if name not in NOT_PRIVATE)
HOSTILE = ('<script>alert("1")</script>', '"&<b>', "site-1e-05'")


def build(
    preset="honest",
    *,
    queries=400,
    channels=64,
    released=8,
    epsilon=8.0,
    cohorts=("north", "south", "west"),
    seeded=False,
    **choices,
):
    plan = Plan.preset(
        preset,
        epsilon=epsilon,
        delta=1e-5,
        participants=Participants(3, queries),
        channels=channels,
        released=released,
        grid=(8, 8),
        **choices,
    )
    draw, flat = np.random.default_rng(0), plan.calibrate()
    statistics = Statistics(
        *(
            Statistic(
                plan.sources[name],
                tuple(draw.lognormal(0, 1, channels).tolist()),
                float(flat.sigma(name)[0]),
            )
            for name in ("caps", "importance")
        )
    )
    calibrated = plan.calibrate(statistics.weights(plan))
    mechanism = TeacherSum.of(calibrated, statistics)
    private = not seeded and plan.allocation != "none"
    noise = {"source": "a secret of the system", "sampler": "rounded-gaussian/1"}
    facts = Facts(private, noise["source"], noise["sampler"], cohorts)
    rows = [min(256, queries - start) for start in range(0, queries, 256)]
    return Manifest(
        kind="features",
        software=SOFTWARE,
        private=private,
        statement=state(calibrated, facts),
        plan=plan.to_json(),
        statistics=statistics.to_json(),
        mechanism=mechanism.to_json(),
        participants={"cohorts": list(cohorts), "initialisation": "ab" * 32, "tap": "down_4"},
        noise=noise,
        ledger={
            "key": "c0ffee" * 10,
            "charges": [
                {"cohort": name, "unit": "patient", "rho": 1.25, "draws": 1234567}
                for name in cohorts
            ],
            "head": {"before": "be" * 32, "after": "af" * 32},
            "totals": [
                {"cohort": name, "unit": "patient", "epsilon_spent": 9.12341, "delta": 1e-5}
                | {"epsilon_budget": 20.0, "conversion": "exact"}
                for name in cohorts
            ],
        }
        if private
        else None,
        record={
            "date": "2026-01-01",
            "purpose": "A student for clinic A & B",
            "contact": "",
            "code": ["cd" * 32],
            "overlap": dict.fromkeys(("cohorts", "queries", "initialisation"), "checked"),
        },
        shards=[
            {"file": f"features-{index:05d}.safetensors", "sha256": f"{index:064x}", "rows": count}
            for index, count in enumerate(rows)
        ],
        rows={f"query-{index}": [index // 256, index % 256] for index in range(queries)},
    )


@cache
def manifest(case):
    return build(**CASES[case])


@cache
def page(case):
    return Page(render(manifest(case)))


def is_safe(written, epsilon):
    """Four digits of an epsilon: at least as large, and by less than one unit of the last."""
    return epsilon * (1 - 1e-11) <= value(written) < epsilon * (1 + 1.001e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_well_formed_and_alone(case):
    made = page(case)
    assert not made.tags & {"script", "link", "img", "iframe", "object", "embed", "a", "base"}
    rest = made.html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//|url\(|@import", rest)
    assert {name for name, _ in made.attributes if name in ("src", "href", "srcset")} == set()
    ids = [content for name, content in made.attributes if name == "id"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("case", CASES)
def test_drawings_are_said_in_words(case):
    made = page(case)
    ids = {content for name, content in made.attributes if name == "id"}
    for svg in made.drawings:
        assert svg.tag == f"{SVG}svg"
        assert svg.get("role") == "img"
        assert set(svg.get("aria-labelledby").split()) <= ids
        assert svg.find(f"{SVG}title").text
        assert svg.find(f"{SVG}desc").text


@pytest.mark.parametrize("case", CASES)
def test_nothing_reads_like_a_program(case):
    words = "\n".join(page(case).text)
    assert not re.search(r"\b(None|nan|inf|True|False|Infinity)\b", words)
    assert not re.search(r"\de[+-]?\d", re.sub(r"\b[0-9a-f]{12,}\b", "", words))
    assert not re.search(r"[\[\]{}]", words)
    # Neither a tail of nines nor one of zeros.
    assert not re.search(r"\d\.\d{7}", words)


@pytest.mark.parametrize("case", PRIVATE)
def test_the_guarantee_of_every_unit_is_there(case):
    statement, made = manifest(case).statement, page(case)
    for unit in UNITS:
        promise = statement["guarantee"][unit]
        name, epsilon, delta, rho, mu, neighbours, reading = made.row(unit)
        assert ("asked for" in name) == (unit == statement["unit"])
        assert neighbours == promise["neighbours"]
        assert reading == prose(promise["reading"])
        if promise["epsilon"] is None:
            assert (epsilon, delta, rho, mu) == ("none",) * 4
            continue
        epsilon, _, exact = epsilon.partition("exact: ")
        assert is_safe(epsilon, promise["epsilon"])
        assert is_safe(exact or epsilon, promise["epsilon_exact"])
        assert value(delta) == statement["delta"]
        assert (value(rho), value(mu)) == (near(promise["rho"]), near(promise["mu"]))


@pytest.mark.parametrize("case", PRIVATE)
def test_the_headline_is_the_chosen_unit_and_the_patient(case):
    statement = manifest(case).statement
    headline = re.search(r"<h1>(.*?)</h1>", page(case).html, re.DOTALL)[1]
    figures = re.findall(r"<b>ε = (.*?)</b>.*?δ = (.*?)</span>", headline)
    expected = [statement["guarantee"][unit] for unit in {statement["unit"]: 0, "patient": 0}]
    assert len(figures) == len(expected)
    for (epsilon, _), promise in zip(figures, expected, strict=True):
        assert is_safe(epsilon, promise["epsilon"])
    assert {value(delta) for _, delta in figures} == {statement["delta"]}


@pytest.mark.parametrize("case", NOT_PRIVATE)
def test_what_is_not_private_is_stamped_above_and_below(case):
    made, warning = page(case), manifest(case).statement["stamp"]
    assert warning.startswith("NOT PRIVATE")
    assert made.stamps == [warning] * 2
    assert made.html.index('<p class="stamp">') < made.html.index("<h1>")
    assert made.html.rindex('<p class="stamp">') > made.html.index("<footer>")
    assert "ε =" not in made.words
    assert all(row[1:5] == ["none"] * 4 for row in map(made.row, UNITS))


@pytest.mark.parametrize("case", PRIVATE)
def test_what_is_private_is_not_stamped(case):
    assert page(case).stamps == []
    assert "NOT PRIVATE" not in page(case).html


@pytest.mark.parametrize("case", CASES)
def test_every_sentence_of_the_statement_is_there(case):
    statement, words = manifest(case).statement, page(case).words
    for part in ("protected", "trust", "mechanism", "not_protected", "assumptions"):
        for sentence in statement[part]:
            assert prose(sentence) in words


def test_sections_come_by_importance():
    order = ["protected", "guarantee", "budget", "Noise", "Trust", "Mechanism", "Not protected"]
    order += ["Assumptions", "Overlap", "About", "folder", "Ledger", "Check", "Signature"]
    headings = page("paper").headings
    assert len(headings) == len(order)
    assert all(word in heading for word, heading in zip(order, headings, strict=True))


@pytest.mark.parametrize("case", ["honest", "paper", "image", "seeded"])
def test_the_bar_is_the_split(case):
    statement, made = manifest(case).statement, page(case)
    rects = {rect.get("class"): rect for rect in made.drawing("split-0").iter(f"{SVG}rect")}
    start = 0.0
    for part, share in statement["split"].items():
        assert percent(share) in made.row(part.capitalize())
        if share:
            assert float(rects[part].get("x")) == pytest.approx(start, abs=0.01)
            assert float(rects[part].get("width")) == pytest.approx(100 * share, abs=0.01)
        start += 100 * share
    assert set(rects) == {part for part, share in statement["split"].items() if share}


def test_a_patient_sees_their_own_split_too():
    """Under the paper's accounting most of what a patient pays is not where the budget went."""
    parts = manifest("paper").statement["guarantee"]["patient"]["parts"]
    for part, cost in parts.items():
        assert page("paper").row(part.capitalize())[-1] == percent(cost["share"])
    assert page("honest").drawing("split-1") is None


def scale(svg, anchor, axis):
    """Positions to values, from the tick labels alone."""
    ticks = [
        (float(label.get(axis)) - (4 if axis == "y" else 0), math.log(value(label.text)))
        for label in svg.iter(f"{SVG}text")
        if label.get("text-anchor") == anchor and re.match(r"\d", label.text)
    ]
    slope, offset = np.polyfit(*zip(*ticks, strict=True), 1)
    assert (slope > 0) == (axis == "x")  # more is to the right, or up
    return lambda position: math.exp(slope * float(position) + offset)


@pytest.mark.parametrize("case", ["honest", "paper", "all channels", "much noise", "seeded"])
def test_every_dot_is_a_channel(case):
    mechanism, svg = manifest(case).mechanism, page(case).drawing("noise")
    path = next(p for p in svg.iter(f"{SVG}path") if p.get("class") == "dots").get("d")
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", path)
    weight, sigma = scale(svg, "middle", "x"), scale(svg, "end", "y")
    assert len(dots) == len(mechanism["channels"])
    assert [weight(x) for x, _ in dots] == pytest.approx(mechanism["weights"], rel=0.03)
    assert [sigma(y) for _, y in dots] == pytest.approx(mechanism["sigma"], rel=0.03)


@pytest.mark.parametrize("case", ["honest", "paper", "many queries", "much noise"])
def test_lines_pass_through_the_epsilons(case):
    statement, svg = manifest(case).statement, page(case).drawing("queries")
    table = statement["epsilon_by_queries"]
    drawn = {p.get("class"): p.get("d") for p in svg.iter(f"{SVG}path") if "line" in p.get("class")}
    known = [unit for unit in UNITS if table[0][unit] is not None]
    assert set(drawn) == {f"line {unit}" for unit in known}
    queries, epsilon = scale(svg, "middle", "x"), scale(svg, "end", "y")
    for unit in known:
        points = re.findall(r"([\d.]+) ([\d.]+)", drawn[f"line {unit}"])
        assert [queries(x) for x, _ in points] == pytest.approx(
            [row["queries"] for row in table], rel=0.05
        )
        assert [epsilon(y) for _, y in points] == pytest.approx(
            [row[unit] for row in table], rel=0.1
        )
    marks = [queries(mark.get("cx")) for mark in svg.iter(f"{SVG}circle")]
    here = manifest(case).plan["participants"]["queries"]
    assert marks == pytest.approx([here] * len(known), rel=0.05)


def test_labels_of_lines_that_meet_are_apart():
    """With one site the paper's accounting and the image's are the same line."""
    made = manifest("paper")
    table = [row | {"image": row["paper"]} for row in made.statement["epsilon_by_queries"]]
    same = replace(made, statement=made.statement | {"epsilon_by_queries": table})
    labels = [
        float(label.get("y"))
        for label in Page(render(same)).drawing("queries").iter(f"{SVG}text")
        if label.text in UNITS
    ]
    assert len(labels) == 3
    assert min(np.diff(sorted(labels))) >= 12
    assert max(labels) < 290


def test_charts_without_content_are_left_out():
    assert page("no noise").drawings == []
    assert page("seeded").drawing("queries") is None
    assert page("one query").drawing("queries") is not None


def test_the_folder_and_the_ledger_are_told():
    made, words = page("many queries"), page("many queries").words
    shards = manifest("many queries").shards
    for shard in shards[:MOST_SHARDS]:
        assert made.row(shard["file"])[1:] == [str(shard["rows"]), shard["sha256"][:12] + "…"]
    assert f"{len(shards) - MOST_SHARDS} more files" in words
    assert shards[MOST_SHARDS]["file"] not in words
    assert "more files" not in page("honest").words
    assert manifest("honest").digest in page("honest").words
    assert "c0ffee" * 10 in words
    assert made.row("north") == ["north", "patient", "1.25", "1,234,567"]
    assert made.starting("north")[1][:4] == ["north", "patient", "9.124", "20"]
    assert "be" * 32 in words
    assert "af" * 32 in words
    assert "canal release verify DIR" in words
    assert "canal account DIR --json" in words
    assert "Channels 0–511." in page("all channels").words
    assert "Nothing was charged" in page("seeded").words


def test_hostile_names_stay_names():
    made = Page(render(build(cohorts=HOSTILE)))
    assert "script" not in made.tags
    for name in HOSTILE:
        assert made.row(name)[0] == name
        # In the first sentence, in the list of cohorts, and twice in the ledger.
        assert made.words.count(name) == 4
    assert made.html.count("<b>") == page("honest").html.count("<b>")


@pytest.mark.parametrize(
    ("entry", "key"),
    [("participants", "tap"), ("participants", "initialisation"), ("plan", "caps_source")],
)
def test_no_entry_of_a_manifest_becomes_markup(entry, key):
    """Whoever forges a manifest cannot put a script on its card."""
    made = manifest("honest")
    forged = replace(made, **{entry: getattr(made, entry) | {key: '<i>&"'}})
    read = Page(render(forged))
    assert "i" not in read.tags
    assert '<i>&"' in read.words


@pytest.mark.parametrize("case", CASES)
def test_the_same_manifest_has_the_same_card(case, tmp_path):
    """Also once it was written and read back, as whoever verifies it does."""
    made = manifest(case)
    (tmp_path / MANIFEST).write_bytes(made.to_bytes())
    assert render(Manifest.read(tmp_path)) == render(made) == page(case).html
