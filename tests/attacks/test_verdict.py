"""What is proven against what is printed: every number of a folder, one at a time too small.

Secrets are fixed, so a run that passes passes again; each verdict is wrong once in a million.
"""

import dataclasses
import math
import re

import numpy as np
import pytest
from scipy import stats

from canal.attacks.audit import Auditor
from canal.attacks.bounds import gaussian_epsilon, width_mu
from canal.attacks.verdict import Verdict, all_read
from canal.privacy.gaussian import epsilon_from_rho
from canal.privacy.units import Participants

QUICK = {"draws": 20_000, "seeds": 1}


@pytest.fixture(scope="module")
def paper(make_release):
    return make_release("paper", unit="patient", conversion="exact", epsilon=8.0)


@pytest.fixture(scope="module")
def drawn(paper, secrets, tmp_path_factory):
    """The games of a release, played once: `printed` of other folders is held against them."""
    auditor = Auditor(paper, secrets=secrets, **QUICK)
    folder = tmp_path_factory.mktemp("games")
    games = [(game, game.play(20_000, secrets(game.unit), folder)) for game in auditor.games]
    return auditor, games


def verdicts(auditor, games):
    return [
        Verdict.of(game, played, auditor.among(game), auditor.printed(game))
        for game, played in games
    ]


def test_what_is_true_is_not_refuted_and_nearly_reached(drawn):
    for verdict in verdicts(*drawn):
        assert not verdict.refuted
        assert verdict.reached > 0.97, verdict.words()
        assert "Not refuted" in verdict.words()


def test_every_number_that_a_folder_prints_is_read(drawn, paper):
    patient, image = verdicts(*drawn)
    everywhere = {"the guarantee", "its exact epsilon", "its rho", "its mu", "the card"}
    everywhere |= {"the table of the card"}
    assert set(patient.stated) == everywhere | {
        *("the table by queries", "a sentence", "a charge"),
    }
    assert set(image.stated) >= {"the guarantee", "the table by queries", "a sentence"}
    # As many ways to say the same: rounded up, and converted by another formula.
    for name, value in patient.stated.items():
        assert value == pytest.approx(8, rel=1e-3), name
        assert (
            value >= (1 - 1e-6) * paper.manifest.statement["guarantee"]["patient"]["epsilon_exact"]
        ), name


def smaller(value):
    """Four fifths of every number, wherever it stands."""
    if isinstance(value, dict):
        return {name: smaller(each) for name, each in value.items()}
    return 0.8 * value if isinstance(value, float) else value


@pytest.mark.parametrize(
    "where",
    ["the guarantee", "its exact epsilon", "its rho", "its mu", "the table by queries", "a charge"],
)
def test_any_of_them_alone_is_refuted_where_it_is_too_small(drawn, where):
    auditor, games = drawn
    manifest = auditor.release.manifest
    statement, promise = dict(manifest.statement), dict(manifest.statement["guarantee"]["patient"])
    ledger = dict(manifest.ledger)
    if where == "a charge":
        ledger["charges"] = [each | {"rho": 0.8 * each["rho"]} for each in ledger["charges"]]
    elif where == "the table by queries":
        statement["epsilon_by_queries"] = [
            row | {"patient": 0.8 * row["patient"]} for row in statement["epsilon_by_queries"]
        ]
    else:
        name = {"the guarantee": "epsilon", "its exact epsilon": "epsilon_exact"}.get(
            where, where.removeprefix("its ")
        )
        promise[name] *= 0.8
        statement["guarantee"] = statement["guarantee"] | {"patient": promise}
    forged = dataclasses.replace(manifest, statement=statement, ledger=ledger)
    release = type(auditor.release)(auditor.release.path, forged)
    patient, _ = verdicts(dataclasses.replace(auditor, release=release), games)
    assert patient.refuted == (where,)
    assert f"in {where}. That is refuted: do not hand this release out" in patient.words()


def test_words_for_people_are_read_as_well(drawn):
    """The sentence that is signed, and the large number of the card."""
    auditor, games = drawn
    manifest = auditor.release.manifest
    stated = manifest.statement["protected"]
    told = [re.sub("with epsilon [0-9.]+", "with epsilon 0.1", said) for said in stated]
    forged = dataclasses.replace(manifest, statement=manifest.statement | {"protected": told})
    release = type(auditor.release)(auditor.release.path, forged)
    patient, image = verdicts(dataclasses.replace(auditor, release=release), games)
    assert patient.refuted == ("a sentence",)
    assert image.refuted == ("a sentence",), image


def test_a_sentence_that_nobody_finds_is_a_fault(drawn):
    """Words change, and what is not found would be held against nothing, in silence."""
    auditor, games = drawn
    manifest = auditor.release.manifest
    for told, fine in ((manifest.statement["protected"], True), (["All are safe."], False)):
        forged = dataclasses.replace(manifest, statement=manifest.statement | {"protected": told})
        release = type(auditor.release)(auditor.release.path, forged)
        other = dataclasses.replace(auditor, release=release)
        for game, _ in games:
            assert all_read(game, other.printed(game)).passed is fine


def test_the_card_of_the_folder_is_read(drawn, tmp_path):
    import shutil

    auditor, games = drawn
    folder = tmp_path / "copy"
    shutil.copytree(auditor.release.path, folder)
    card = folder / "card.html"
    assert card.read_text().count("<b>ε = ") >= 1
    card.write_text(card.read_text().replace("<b>ε = ", "<b>ε = 0."))
    release = type(auditor.release)(folder, auditor.release.manifest)
    patient, _ = verdicts(dataclasses.replace(auditor, release=release), games)
    assert patient.refuted == ("the card",)
    # Its table alone, which a person reads next.
    row = 'data-label="ε">'
    whole = (auditor.release.path / "card.html").read_text()
    assert row in whole
    card.write_text(whole.replace(row, f"{row}0."))
    patient, image = verdicts(dataclasses.replace(auditor, release=release), games)
    assert patient.refuted == image.refuted == ("the table of the card",)


def test_a_patient_who_counts_once_and_speaks_on_every_query(
    make_release, secrets, tmp_path, monkeypatch
):
    """The reviewed bug: the folder said 8, and the audit itself had proven 97."""
    from canal.privacy.units import Exposure

    real = Participants.features

    def once(self, diameter):
        found = real(self, diameter)
        return found | {"patient": Exposure(found["patient"].sensitivity)}

    monkeypatch.setattr(Participants, "features", once)
    auditor = Auditor(make_release(), secrets=secrets, units=("patient",), **QUICK)
    found = auditor.run()
    assert not found.holds
    (patient,) = found.verdicts
    assert patient.stated["the guarantee"] == pytest.approx(8, rel=1e-6)
    assert patient.epsilon > 60  # of 24 queries
    assert {"the guarantee", "a sentence", "the card"} <= set(patient.refuted)
    assert found.words()[-1] == "The audit found a fault."


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
@pytest.mark.parametrize("mu", [0.01, 0.3, 1.7, 12.0, 60.0])
def test_the_conversion_is_the_exact_one_and_shares_no_code(mu, delta):
    exact = epsilon_from_rho(mu * mu / 2, delta)
    down, up = (gaussian_epsilon(mu, delta, upwards=side) for side in (False, True))
    assert down <= exact * (1 + 1e-9) <= up * (1 + 1e-6)
    assert down == pytest.approx(exact, rel=1e-6, abs=1e-9)
    if 0 < down < 500:
        normal = stats.norm
        found = normal.cdf(mu / 2 - down / mu) - math.exp(down) * normal.cdf(-mu / 2 - down / mu)
        assert found == pytest.approx(delta, rel=1e-4)


def test_the_width_bound_is_above_the_truth_as_often_as_it_says():
    """At 5 %: the binomial test is wrong once in 1e5, on both sides."""
    rng = np.random.default_rng(0)
    apart, draws, runs = np.array([0.5, 0.0, 0.2]), 500, 4000
    truth = math.hypot(*apart)
    ratios = rng.chisquare(draws, (runs, 3)) / draws
    above = sum(width_mu(apart, each, draws, 0.95) > truth for each in ratios)
    assert above <= 0.05 * runs + 4.3 * math.sqrt(0.05 * 0.95 * runs)
    assert width_mu(apart, np.zeros(3), draws) == math.inf
    assert width_mu(0 * apart, np.ones(3), draws) == 0
    # Not idle: hardly below the truth where much was drawn.
    assert width_mu(apart, np.ones(3), 1e6, 1 - 1e-6) > 0.99 * truth
