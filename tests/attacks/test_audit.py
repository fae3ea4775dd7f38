"""The audit of a folder: what it says, of releases that are right, wrong, or not private at all."""

import json
import math

import numpy as np
import pytest

from canal.attacks.audit import Auditor, audit
from canal.attacks.individual import IndividualLoss
from canal.errors import InvalidValueError, ReleaseError
from canal.features.statistics import Statistics, Sum
from canal.features.store import Release
from canal.features.worst_case import on_lattice
from canal.privacy import Lattice, Secret
from canal.release.manifest import SOFTWARE
from canal.release.noisy_sum import NoisySum
from canal.release.verification import check_statement, verify

PRIVATE = {"caps_source": "private", "importance_source": "private"}
QUICK = {"draws": 4000, "seeds": 50}


@pytest.fixture(scope="module")
def honest(make_release):
    return make_release()


@pytest.fixture(scope="module")
def paper(make_release):
    return make_release("paper")


def test_a_release_that_is_right(honest, secrets):
    found = audit(honest, secrets=secrets, **QUICK)
    assert found.holds
    assert [check.what for check in found.checks if check.passed is False] == []
    assert [check.what for check in found.checks][-2:] == ["birthdays of secrets", "secret"]
    assert [(each.unit, each.drawn, each.among) for each in found.outcomes] == [
        ("patient", 24, 24),
        ("image", 1, 1),
    ]
    patient = found.outcomes[0]
    assert patient.claimed_epsilon == pytest.approx(8, rel=1e-6)
    assert 0.9 < patient.reached <= 1
    assert found.words()[-1].startswith("Nothing that was stated is refuted")
    assert any("Query images are promised nothing here" in said for said in found.words())


def test_the_paper_falls_short_and_ours_holds(paper, secrets):
    found = audit(paper, secrets=secrets, **QUICK)
    assert found.holds
    assert found.stated["paper"] <= 8
    assert found.outcomes[0].gaussian_epsilon > 50
    assert found.outcomes[0].sure_epsilon <= found.stated["patient"]
    assert found.paper_falls_short
    assert any("guarantee for nobody" in said for said in found.words())
    parts = [each.what for each in found.outcomes if each.part and each.unit == "image"]
    assert parts == ["features", "caps", "importance"]
    # Parts are in the file; a person reads of them where they are at fault.
    assert sum(said.startswith("The query images") for said in found.words()) == 1


def test_the_paper_falls_short_at_the_level_of_every_alarm(make_release, secrets):
    """A bound of 95 % above it is no finding: one in twenty is, by chance."""
    from dataclasses import replace

    found = audit(make_release(seed=7), secrets=secrets, units=("patient",), **QUICK)
    for each in found.outcomes:
        assert 0 < each.sure_epsilon < each.gaussian_epsilon
        assert each.to_json()["sure_epsilon"] == each.sure_epsilon
    proved = found.verdicts[0].epsilon
    for stated, short in ((proved * 0.999, True), (proved * 1.001, False)):
        told = replace(found, stated=found.stated | {"paper": stated})
        assert told.paper_falls_short is short
        assert any("guarantee for nobody" in said for said in told.words()) is short


def test_the_file(paper, secrets, tmp_path):
    found = audit(paper, secrets=secrets, units=("image",), **QUICK)
    found.write(tmp_path / "deep" / "audit.json")
    content = json.loads((tmp_path / "deep" / "audit.json").read_text())
    assert content["format"] == "canal-audit/2"
    assert content["release"] == paper.manifest.digest
    assert content["holds"] is True
    assert content["words"] == found.words()
    game = content["games"][0]
    assert game["unit"] == "image"
    assert 0 < game["clopper_pearson"]["epsilon"] < game["gaussian"]["epsilon"]
    assert game["gaussian"]["epsilon"] <= game["claimed"]["epsilon"]
    assert all(0 <= check["false_alarm"] < 1e-5 for check in content["checks"])


def test_seeded_noise_is_audited_and_said_to_protect_nobody(make_release, secrets):
    found = audit(make_release(seed=7), secrets=secrets, **QUICK)
    assert found.holds
    assert "NOT PRIVATE: the noise is seeded" in found.words()[0]
    assert "as if it had been secret" in found.words()[0]


def test_a_seed_is_no_secret_that_passed(make_release, secrets):
    """Nothing is enumerated: that no seed explains a fresh secret would say nothing of this one."""
    auditor = Auditor(make_release(seed=7), secrets=secrets, **QUICK)
    counted = []
    found = auditor.run(counted.append)
    assert sum(counted) == auditor.work
    (secret,) = [check for check in found.checks if "secret" in check.what]
    assert secret.passed is None
    assert "Secret: the noise came from a seed, so there is no secret to find" in str(found.words())
    assert secret.to_json() in found.to_json()["checks"]


def test_whose_code_was_played_is_said(make_release, secrets):
    """The version of the folder is its own word; another one is another finding."""
    from dataclasses import replace

    release = make_release(seed=7)
    found = audit(release, secrets=secrets, units=("image",), **QUICK)
    assert any("the folder says that the same version made it" in said for said in found.words())
    same = {"made": SOFTWARE, "played": SOFTWARE, "same_version": True}
    assert found.to_json()["software"] == same
    older = Release(release.path, replace(release.manifest, software="canal 0.0.9"))
    found = audit(older, secrets=secrets, units=("image",), **QUICK)
    assert any("the folder says that canal 0.0.9 made it" in said for said in found.words())
    assert any("audit it with the version that made it" in said for said in found.words())
    assert found.to_json()["software"] == same | {"made": "canal 0.0.9", "same_version": False}


def test_no_noise_at_all(make_release, secrets):
    found = audit(make_release(allocation="none", **PRIVATE), secrets=secrets, **QUICK)
    assert found.holds  # nothing was claimed
    assert all(math.isinf(each.gaussian_mu) for each in found.outcomes)
    assert "no noise was added" in found.words()[0]
    assert any("one look tells the worlds apart" in said for said in found.words())
    assert not found.paper_falls_short
    json.dumps(found.to_json(), allow_nan=False)


def test_less_noise_than_stated_is_refuted(honest, secrets, monkeypatch):
    real = Lattice.perturb
    monkeypatch.setattr(
        Lattice,
        "perturb",
        lambda self, total, sigma, stream, **more: real(self, total, sigma / 2, stream, **more),
    )
    found = audit(honest, secrets=secrets, **QUICK)
    assert not found.holds
    assert found.outcomes[0].refuted
    assert "it is refuted. Do not hand this release out" in found.outcomes[0].words()
    assert found.words()[-1] == "The audit found a fault."


def test_a_secret_that_is_a_seed(honest):
    found = audit(honest, secrets=lambda part: Secret.seeded(33), **QUICK)
    assert [check.what for check in found.checks if check.passed is False] == ["secret"]
    assert any("seed 33 gives again the noise of a secret" in said for said in found.words())


def test_noise_used_again_in_the_folder_itself(make_release, monkeypatch):
    """No code is played here, it is the folder that shows it."""
    real = Secret.key

    def forgetful(self, *context):
        return real(self, *(context[:-2] if context[0] == b"features" else context))

    def look(release):
        (found,) = [check for check in verify(release.path) if check.what == "repeats"]
        return found.passed

    assert look(make_release(seed=0))
    monkeypatch.setattr(Secret, "key", forgetful)
    assert look(make_release(seed=0)) is False


def test_statistics_of_the_folder(paper, honest, make_release, monkeypatch):
    def look(release):
        statistics = Statistics.from_json(release.manifest.statistics)
        return on_lattice(statistics, check_statement(release.manifest))

    assert look(paper).passed
    assert look(honest).passed is None
    real = Sum.mean
    monkeypatch.setattr(Sum, "mean", lambda self: tuple(v + 1e-9 for v in real(self)))
    found = look(make_release("paper", seed=0))
    assert found.passed is False
    assert "off the lattice" in found.detail
    monkeypatch.setattr(Sum, "mean", real)
    monkeypatch.setattr(NoisySum, "perturb", lambda self, total, stream: np.asarray(total))
    # So little budget that the noise would have drowned everything; there is none.
    found = look(make_release("paper", seed=0, epsilon=0.01))
    assert found.passed is False
    assert "vary less than their noise" in found.detail


def test_a_canary_that_pays_more_than_is_allowed(honest, secrets):
    from dataclasses import replace

    found = audit(honest, secrets=secrets, units=("image",), **QUICK)
    good, bad = IndividualLoss("north", 0.5, 1.6, 1e-5), IndividualLoss("north", 1.7, 1.6, 1e-5)
    assert replace(found, canary=good).holds
    assert not replace(found, canary=bad).holds
    assert "above" in bad.words()
    assert "epsilon 1.6" not in bad.verdict
    for canary in (good, bad):
        told = replace(found, canary=canary)
        assert canary.verdict in told.words()
        assert canary.words() not in told.words()
        assert canary.words() in told.individual()["words"]


def test_progress_adds_up_to_the_work(honest, secrets):
    auditor = Auditor(honest, secrets=secrets, **QUICK)
    counted = []
    auditor.run(counted.append)
    assert sum(counted) == auditor.work


def test_too_few_draws_are_refused(honest):
    with pytest.raises(InvalidValueError, match="draws = 10 must be at least 1000"):
        Auditor(honest, draws=10)


def test_a_statement_that_does_not_follow_is_refused(honest, secrets):
    import dataclasses

    statement = dict(honest.manifest.statement, delta=1e-7)
    forged = Release(honest.path, dataclasses.replace(honest.manifest, statement=statement))
    with pytest.raises(ReleaseError, match="does not follow from the plan"):
        audit(forged, secrets=secrets, **QUICK)


def test_one_query_only(make_release, make_arrays, secrets):
    found = audit(make_release(arrays=make_arrays(1)), secrets=secrets, **QUICK)
    assert found.holds
    assert [each.drawn for each in found.outcomes] == [1, 1]


def test_a_bound_that_is_above_by_chance_refutes_nothing(honest, secrets):
    """In one run of twenty; said as it is, and no alarm."""
    from dataclasses import replace

    lucky = replace(
        audit(honest, secrets=secrets, units=("image",), **QUICK).outcomes[0],
        claimed_mu=1.0,
        gaussian_mu=1.01,
    )
    assert "as one in twenty is by chance" in lucky.words()
    assert not lucky.refuted
