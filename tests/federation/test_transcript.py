"""What an aggregator and a colluding site make of all that was sent: no more than is claimed.

The adversary has every message of a real session, the files of one site (its keys, its noise, its
teacher), and wants to know which of two teachers another site has. All that protects that site are
its own share of the noise, and that of the third.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from canal.attacks.game import Game
from canal.attacks.verdict import Outcome
from canal.errors import FederationError
from canal.features.ensemble import Ensemble
from canal.features.job import RemoteTeachers
from canal.features.mechanism import FEATURES, FeatureMechanism, TeacherSum
from canal.features.plan import Plan
from canal.features.release import mechanism_of
from canal.features.statistics import Statistics
from canal.features.worst_case import (
    FeatureWorstCase,
    feature_tap,
    scripted_queries,
    scripted_teachers,
    turned,
)
from canal.federation.contract import Contract
from canal.federation.masks import add_up
from canal.federation.message import Message
from canal.federation.remote import RemoteFederation
from canal.federation.site import Site
from canal.federation.transport import InMemory
from canal.privacy import Ledger, Participants
from canal.privacy.randomness import Secret
from canal.release.mechanism import Published, contribution
from canal.release.publish import publish
from federation.malicious import topic

PAIRS = 800
UNCHECKED = dict.fromkeys(("cohorts", "queries", "initialisation"), "not checked: all are invented")
ALPHA = 1e-7  # false-alarm rate of each test of uniformity
VICTIM, TRAITOR, THIRD = "site-0", "site-1", "site-2"


def make_plan(colluding):
    """So little noise that a pair of queries is told apart with some success."""
    return Plan.preset(
        "honest",
        epsilon=6900.0,
        participants=Participants(teachers=3, queries=2 * PAIRS),
        channels=4,
        released=4,
        grid=(2,),
        trained_initialisation=False,
        allocation="uniform",
        trust="secure-sum",
        colluding=colluding,
    )


class Transcript:
    """A session that stops before its end, as the adversary sees it."""

    def __init__(self, folder, world, plan, insists):
        from canal.federation.identity import Identity

        self.folder, self.world, self.plan = folder, world, plan
        self.messages = []
        prints, sites = {}, {}
        for teacher in world.ensemble.teachers:
            home = folder / teacher.cohort
            prints[teacher.cohort] = Identity.create(home, teacher.cohort).fingerprint
            terms = [f'name = "{teacher.cohort}"', f"colluding = {insists}", "again = true"]
            (home / "site.toml").write_text("\n".join(terms))
            Ledger(home / "ledger.sqlite").set_budget(
                teacher.cohort, "patient", epsilon=7000.0, delta=1e-5
            )
            site = Site.open(home)
            alone = replace(world.ensemble, teachers=(teacher,), trained_initialisation=False)
            teacher.tap.network = None  # what it is beside its answers: nothing
            site.cohort.__dict__["ensemble"] = alone
            sites[teacher.cohort] = site
        for name in sites:
            (folder / name / "roster.json").write_text(json.dumps(prints))
        self.inner = InMemory({name: site.answer for name, site in sites.items()})
        shared = world.ensemble.teachers[1].tap
        remote = RemoteFederation(self, "a" * 32, "features", "secure-sum")
        mechanism = mechanism_of(plan, RemoteTeachers(remote, shared), world.queries)
        with pytest.raises(FederationError, match="stopped"):
            publish(folder / "release", mechanism, remote, overlap=UNCHECKED)

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        about = topic(Message.from_bytes(next(iter(requests.values()))).head)
        if about == "finish":
            raise FederationError("stopped")
        answers = self.inner.ask(requests)
        if about == "features":
            self.messages.append({n: Message.from_bytes(a) for n, a in answers.items()})
        return answers

    def words(self, name):
        """Everything that one site sent about features."""
        self.messages.sort(key=lambda answers: answers[name].head["number"])
        return np.concatenate([m[name].arrays["features"] for m in self.messages])

    def seen(self):
        """Sums over all sites but the traitor, with the noise that nobody told."""
        everything = add_up({name: self.words(name) for name in self.sites}, self.sites)
        home = self.folder / TRAITOR / "sessions" / ("a" * 32)
        agreed = json.loads((home / "agreement.json").read_text())
        told = json.loads((home / "statistics.json").read_text())
        statistics = Statistics.from_json(told)
        mechanism = TeacherSum.of(self.plan.calibrate(statistics.weights(self.plan)), statistics)
        traitor = next(t for t in self.world.ensemble.teachers if t.cohort == TRAITOR)
        spec = Contract.from_json(agreed).spec
        own = spec.noise_of_site(Secret.load(home / "secret"), traitor.claim)
        whole, published = FeatureMechanism(spec, self.world.queries), Published(told)
        sent = [
            contribution(whole, step, traitor, published, own)[FEATURES]
            for shard in whole.shards()
            for step in shard
        ]
        return mechanism, everything.astype(np.int64) - np.concatenate(sent)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Both worlds, each in a session of its own; scores of pairs of queries."""

    def play(colluding=1, insists=1):
        plan = make_plan(colluding)
        kinds = [False, True] * PAIRS
        queries, teachers = scripted_queries(kinds), scripted_teachers(feature_tap(plan), 3)
        transcripts = []
        for number, world in enumerate((teachers, turned(teachers, 0))):
            known = SimpleNamespace(ensemble=Ensemble(tuple(world), "first"), queries=queries)
            transcripts.append(Transcript(tmp_path / str(number), known, plan, insists))
        scores = []
        for transcript in transcripts:
            mechanism, seen = transcript.seen()
            game = Game(FeatureWorstCase(mechanism), "patient", 2)
            # What is stored is rounded to 16 bits; the adversary has the whole sum.
            units = np.ldexp(1.0, -mechanism.shift)[None, :, None]
            flat = (seen * units).reshape(PAIRS, 2, -1)
            moved = game.moved[FEATURES]
            scores.append(sum(moved.score(kind, flat[:, kind]) for kind in (0, 1)))
        return transcripts, Outcome.of(game, tuple(scores), game.claimed[FEATURES], what="pairs")

    return play


def test_all_messages_but_one_honest_sites_tell_no_more_than_is_claimed(play):
    transcripts, outcome = play()
    assert not outcome.refuted
    # It is an attack: what it finds is not far below.
    assert outcome.gaussian_mu > 0.75 * outcome.claimed_mu
    for transcript in transcripts:
        for name in (VICTIM, THIRD):
            words = transcript.words(name)
            assert uniform_p(words) > ALPHA
        assert uniform_p(transcript.words(VICTIM) + transcript.words(THIRD)) > ALPHA


def test_shares_that_allow_for_nobody_to_tell_are_found_out(play):
    """The negative control: t = 0, and one tells. Claims are of what all shares would give."""
    _, outcome = play(colluding=0, insists=0)
    assert outcome.refuted
    assert outcome.gaussian_mu > outcome.claimed_mu


def uniform_p(words):
    """Least p-value over the four bytes of words: chi-square on 256 bins, Bonferroni."""
    flat = words.ravel()
    found = [
        stats.chisquare(np.bincount((flat >> (8 * place)) & 255, minlength=256)).pvalue
        for place in range(4)
    ]
    return 4 * min(found)


def test_words_without_masks_are_not_uniform(play, monkeypatch):
    """The negative control of the test of uniformity."""
    from canal.federation import session as module

    monkeypatch.setattr(module, "mask", lambda count, *rest: np.zeros(count, dtype=np.uint32))
    transcripts, _ = play()
    assert uniform_p(transcripts[0].words(VICTIM)) < ALPHA
