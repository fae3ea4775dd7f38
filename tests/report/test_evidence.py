"""Inversions and audits in a report: real files of both kinds, and files that only say they are."""

import json

import numpy as np
import pytest

from canal.attacks.audit import audit
from canal.attacks.inversion import Inversion, Likeness
from canal.errors import DataError
from canal.privacy import Secret
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
    assert "A lower bound can refute, it cannot prove." in page


@pytest.mark.parametrize("form", ["canal-audit/1", "canal-inversion/1"])
def test_a_damaged_file_is_named(tmp_path, form):
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"format": form, "release": "f", "words": []}))
    with pytest.raises(DataError, match=r"found\.json cannot be read"):
        read_evidence(path, "found.json")


@pytest.mark.parametrize("content", ["[1]", "{", '{"format": "canal-split/1"}', '"canal-audit/1"'])
def test_files_of_others_are_left_alone(tmp_path, content):
    (tmp_path / "list.json").write_text(content)
    assert read_evidence(tmp_path / "list.json", "list.json") is None
