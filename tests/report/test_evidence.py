"""Inversions and audits in a report: real files of both kinds, and files that only say they are."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest

from canal.attacks.audit import FORMAT as AUDITED
from canal.attacks.audit import audit
from canal.attacks.inversion import Inversion, Likeness
from canal.attacks.traces import Check
from canal.errors import DataError
from canal.privacy import Secret
from canal.release.digits import prose
from canal.report.evidence import read_evidence
from canal.report.render import render
from canal.report.run import Run


def painted(digest):
    like = [
        Likeness(np.array(s), np.array(p))
        for s, p in (([0.4, 0.5], [20, 21]), ([0.3, 0.3], [15, 16]))
    ]
    return Inversion(digest, np.zeros((2, 1, 4, 4), np.uint8), *like)


@pytest.fixture
def audited(run_folder):
    """The run with an inversion and a short audit of its CANAL release."""
    release = next(each for each in Run.read(run_folder).releases if each.plan.unit == "paper")
    found = painted(release.digest)
    (run_folder / "inversion.json").write_text(json.dumps(found.to_json()))
    made = audit(release.release, draws=1000, seeds=4, secrets=lambda name: Secret.seeded(5))
    made.write(run_folder / "audit.json")
    return run_folder, made


def test_both_are_on_the_page(audited):
    folder, made = audited
    run = Run.read(folder)
    assert {each.name for each in run.evidence} == {"Feature inversion", "Audit"}
    page = render(run).replace("\xa0", " ")
    assert "0.450" in page
    assert "+0.150 (+0.100 to +0.200)" in page
    for outcome in made.outcomes:
        assert outcome.what in page
    for verdict in made.verdicts:
        assert f"{verdict.unit}, all {verdict.among} queries of the folder" in page
        assert prose(verdict.words()) in html.unescape(page)
    assert "A lower bound can refute, it cannot prove." in page


def rows_of(page, style):
    """Cells of the table rows of one style, as a person reads them."""
    rows = re.findall(rf'<tr class="{style}">(.*?)</tr>', page, re.DOTALL)
    cells = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows)
    return [[html.unescape(cell).replace("\xa0", " ") for cell in row] for row in cells]


def test_a_check_that_failed_stands_out_on_the_page(audited):
    """Two checks and a game, before all that passed; words of others stay words."""
    folder, made = audited
    assert rows_of(render(Run.read(folder)), "fault") == []
    faults = (
        Check("secret", False, "seed 3 gives <again> the noise", 1e-14),
        Check("width of the noise in the folder", False, "0.5 of it", 1e-9, folder=True),
    )
    refuted = dataclasses.replace(made.outcomes[0], refuted=True)
    broken = dataclasses.replace(
        made, checks=(*made.checks, *faults), outcomes=(refuted, *made.outcomes[1:])
    )
    broken.write(folder / "audit.json")
    page = render(Run.read(folder))
    found = rows_of(page, "fault")
    assert found[0][-1] == "refuted"
    assert found[1] == ["secret", "the code", "failed", "10⁻¹⁴", "seed 3 gives <again> the noise"]
    assert found[2][:3] == ["width of the noise in the folder", "the folder", "failed"]
    assert len(found) == 3
    assert page.index("seed 3 gives") < page.index(made.checks[0].detail)
    assert "The audit found a fault." in page


def test_every_check_is_on_the_page(audited):
    folder, made = audited
    (found,) = [each for each in Run.read(folder).evidence if each.name == "Audit"]
    assert {row[0] for row in found.checks} == {check.what for check in made.checks}
    assert {row[2] for row in found.checks} <= {"passed", "cannot be told"}


@pytest.mark.parametrize("form", [AUDITED, "canal-inversion/1"])
def test_a_damaged_file_is_named(tmp_path, form):
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"format": form, "release": "f", "words": []}))
    with pytest.raises(DataError, match=r"found\.json cannot be read"):
        read_evidence(path, "found.json")


def test_an_audit_that_did_not_test_what_is_stated_is_refused(audited):
    """Of an older version: its verdict was about what it drew, and not about the folder."""
    folder, _ = audited
    content = json.loads((folder / "audit.json").read_text())
    (folder / "audit.json").write_text(json.dumps(content | {"format": "canal-audit/1"}))
    with pytest.raises(DataError, match=r"another version \(canal-audit/1\).*audit again"):
        Run.read(folder)


@pytest.mark.parametrize("content", ["[1]", "{", '{"format": "canal-split/1"}', '"canal-audit/1"'])
def test_files_of_others_are_left_alone(tmp_path, content):
    (tmp_path / "list.json").write_text(content)
    assert read_evidence(tmp_path / "list.json", "list.json") is None
