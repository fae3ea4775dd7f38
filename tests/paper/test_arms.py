"""Every arm runs and gives what tables read; what arms share; what attacks find in tiny trials."""

import ast
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from canal.attacks.view import noiseless_rows, released_rows, spreads
from canal.learning import checkpoint
from paper.arms import FeatureRelease, Outlines, Student, predict
from paper.attacks import Cohort, FeatureMembership, ImageAttacks, RoundsMembership, ShadowNetworks
from paper.documents import ROOT
from paper.feature_tables import BASELINE, ablated
from paper.grids import GRIDS, SMOKE
from paper.rounds import GradientRelease
from paper.scenario import Folders, Scenario
from paper.trial import Results, Trial

TINY = SMOKE[0].scenario


@pytest.fixture
def study(smoke):
    folders, _ = smoke
    return TINY.study(folders)


@pytest.fixture
def of(smoke):
    """Results of one kind of arm, by arm."""
    return lambda kind: {each.arm: smoke[1][each] for each in SMOKE if type(each.arm) is kind}


def shape(values):
    """Names and kinds of values of a result, whatever the numbers and however many the sites."""
    if isinstance(values, dict):
        known = {re.sub(r"site-\d+", "site", name): each for name, each in values.items()}
        return {name: shape(each) for name, each in known.items() if name != "tpr"}
    if isinstance(values, list):
        return [shape(each) for each in values[:1]]
    return "word" if isinstance(values, str) else "number"


def test_every_arm_of_the_documents_gives_what_their_results_have(smoke, lines):
    _, results = smoke
    known = {}
    for line in lines:
        shapes = known.setdefault(line["arm"]["kind"], [])
        if (found := shape(line["result"])) not in shapes:
            shapes.append(found)
    assert {trial.arm.kind for trial in SMOKE} == set(known)
    for trial in SMOKE:
        assert shape(results[trial]) in known[trial.arm.kind], trial.name


def test_a_second_run_makes_nothing(smoke, monkeypatch):
    folders, results = smoke
    assert Results(results.folder).missing(SMOKE) == []
    lines = sum(len(path.read_text().splitlines()) for path in results.folder.glob("*"))
    assert lines == len({trial.key for trial in SMOKE})
    # What a killed run left behind is not trained again, and gives the same numbers.
    monkeypatch.setattr("canal.learning.runs.fit", lambda *a, **k: pytest.fail("trained again"))
    for arm in (
        Student("local-only"),
        next(each.arm for each in SMOKE if type(each.arm) is Outlines),
    ):
        trial = next(each for each in SMOKE if each.arm == arm)
        assert trial.run(folders) == results[trial]


def test_the_same_seed_makes_the_same_trial(smoke, tmp_path):
    """And another seed another one."""
    _, results = smoke
    trial = next(each for each in SMOKE if type(each.arm) is GradientRelease)
    assert trial.run(Folders(tmp_path, tmp_path)) == results[trial]
    other = trial.at({"seed": 1})
    assert other.run(Folders(tmp_path, tmp_path))["images"] != results[trial]["images"]


def test_arms_share_all_but_one_thing(study, tmp_path):
    """Split, teachers, caps, channels and draws: noise over its sigma is the same in releases."""
    drawn, published = [], []
    for allocation in ("uniform", "canal"):
        release = FeatureRelease(allocation=allocation).create(study, tmp_path / allocation)
        clear = noiseless_rows(release, study.ensemble, study.part("recipient"))
        drawn.append((released_rows(release) - clear) / spreads(release))
        published.append((release.channels.tolist(), release.caps.tolist()))
    assert published[0] == published[1]
    assert np.corrcoef(drawn[0].ravel(), drawn[1].ravel())[0, 1] > 0.999


def test_an_ensemble_votes_with_probabilities(study):
    class Sure(torch.nn.Module):
        def __init__(self, logit):
            super().__init__()
            self.logit = logit

        def forward(self, images):
            return torch.full_like(images[:, :1], self.logit)

    test = study.part("test")
    assert not predict([Sure(5.0), Sure(-0.1), Sure(-5.1)], test).any()
    # Two of three say no, but the third is surer.
    assert predict([Sure(5.0), Sure(-0.1), Sure(-0.2)], test).all()
    assert predict([Sure(5.0), Sure(0.3), Sure(-4.9)], test).all()


def test_signal_is_what_it_says(smoke, tmp_path):
    """Less noise is more signal; to shrink what one reads is not."""
    folders, results = smoke

    rows = [ablated(label, "patient", 8.0) for label in (BASELINE, "Wiener", "K = 10")]
    patient, shrunk, many = (row.trial(TINY).run(folders) for row in rows)
    paper = results[Trial(TINY, Student("release", FeatureRelease()))]
    assert shrunk["signal_db"] == pytest.approx(patient["signal_db"], abs=3)
    assert min(many["signal_db"], paper["signal_db"]) > patient["signal_db"] + 2
    assert patient["epsilon"]["patient"] < 8 < paper["epsilon"]["patient"]


def test_attacks_on_images_find_them_without_noise(of):
    noisy, clear = of(ImageAttacks).values()
    assert clear["images"]["auc"] == 1
    assert clear["epsilon"] is None
    assert clear["left_out"][0]["mu"] is None
    assert clear["apart"] > 10 * noisy["apart"]
    assert 0 < noisy["left_out"][0]["mu"] < noisy["mu"]


def test_sums_without_noise_name_everybody(of):
    noisy, clear = of(RoundsMembership).values()
    for who in ("canaries", "ordinary"):
        assert clear[who]["auc"] == clear[who]["known"] == clear[who]["played"]["auc"] == 1
        assert noisy[who]["played"]["auc"] < 0.95
        assert noisy[who]["mu"] <= noisy["mu"] * (1 + 1e-9)
    assert (clear["mu"], clear["epsilon"]) == (None, None)


def test_shadows_are_attacked_once_each(of):
    (found,) = of(FeatureMembership).values()
    assert found["epsilon"] > 8  # the paper's accounting
    assert len(found["canaries"]["scores"]["members"]) == 8 * 4 // 2


@pytest.mark.slow
def test_without_noise_the_attack_finds_canaries(tmp_path, monkeypatch):
    """A real training for each shadow: the area is above 0.8, and its interval above a coin's."""
    monkeypatch.setenv("CANAL_CACHE", str(tmp_path / "cache"))
    scenario = Scenario(
        "endoscopy", size=32, sites=2, recipient=12, steps=100, synthetic=100, init_length=1
    )
    networks = ShadowNetworks(Cohort(canaries=8, ordinary=4, always=4), 32)
    trial = Trial(scenario, FeatureMembership(FeatureRelease("honest", 8.0, "none"), networks))
    canaries = trial.run(Folders(tmp_path, tmp_path))["canaries"]
    assert canaries["auc"] > 0.8
    assert canaries["auc_interval"][0] > 0.5
    assert canaries["p"] <= 0.05


@pytest.mark.parametrize("unlabelled", [0, 5])
def test_a_student_of_rounds_reads_the_recipients_images_and_public_ones(unlabelled, smoke):
    folders, _ = smoke
    like = next(each for each in SMOKE if type(each.arm) is GradientRelease)
    trial = replace(like, arm=GradientRelease(like.arm.rounds, unlabelled=unlabelled))
    trial.run(folders)
    notes = checkpoint.describe(trial.folder(folders) / "student").notes
    assert (notes["images"], notes["labelled"]) == (TINY.recipient + unlabelled, TINY.recipient)


def test_a_trial_that_two_grids_share_is_one_trial():
    shared = {trial.key for trial in GRIDS["table1"].trials(5)}
    assert shared & {trial.key for trial in GRIDS["ablation"].trials(3)}


def test_only_public_names_of_the_package_are_used():
    """And the package knows nothing of its experiments."""
    for path in (ROOT / "paper").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "canal":
                names = [*node.module.split("."), *(each.name for each in node.names)]
                assert not any(name.startswith("_") for name in names), path
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    assert not any("import paper" in text or "from paper" in text for text in texts)
