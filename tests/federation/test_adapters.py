"""Adapters across sites: one charge, the same bytes as in one process."""

import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from canal.errors import FederationError, InvalidValueError
from canal.federation.aggregate import run
from canal.federation.history import history
from canal.federation.message import Message
from canal.federation.session import Session
from canal.gradients import site as gradient_site
from canal.gradients.store import AdapterRelease
from canal.release.verification import verify
from federation.local import teach_alone
from federation.malicious import Malicious, Spy, journals, set_in, tell, upload
from tiny import SITES

ROUNDS = 3
ALPHA = 1e-7  # false-alarm rate of a test of uniformity
PLAN = {"epsilon": 8.0, "patients": 40, "rounds": ROUNDS}


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory, arrays):
    """Twelve images at each site, other ones than the recipient's."""
    folder = tmp_path_factory.mktemp("cohorts")
    for number, site in enumerate(SITES):
        for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
            (folder / site / part).mkdir(parents=True)
            for row in range(12):
                image = np.rot90(np.asarray(values[12 * number + row][0]))
                Image.fromarray(image).save(folder / site / part / f"{site}-{row}.png")
    return folder


@pytest.fixture
def make(make_hospitals, cohorts):
    """Hospitals with images; a membership budget, too."""

    def made(name="hospitals", epsilon=20.0, **terms):
        hospitals = make_hospitals(name, epsilon=60.0, images="images", **terms)
        for site in SITES:
            (hospitals.home(site) / "images").symlink_to(cohorts / site)
            ledger = hospitals.ledger(site)
            ledger.set_budget(site, "membership", epsilon=epsilon, delta=1e-5)
        return hospitals

    return made


@pytest.fixture
def order(make_order):
    def made(out="release", plan=PLAN, **choices):
        few = {"parts": ["norms", "head"]}
        return make_order(out, release="adapters", plan=plan, **({"adapter": few} | choices))

    return made


BASIS, COUNTED = {"directions": 9}, {"count": 0.05, "allocation": "channels"}


@pytest.mark.parametrize(
    ("trust", "more"),
    [
        ("secure-sum", BASIS),
        pytest.param("trusted", BASIS, marks=pytest.mark.slow),
        pytest.param("secure-sum", COUNTED, marks=pytest.mark.slow),
        ("trusted", COUNTED),
    ],
)
def test_it_is_byte_for_byte_the_release_of_one_process(
    make, order, cohorts, tmp_path, trust, more
):
    hospitals = make(research=True, trust=["trusted", "secure-sum"])
    asked = order(plan=PLAN | more, trust=trust, seed=5)
    made = run(asked, hospitals.transport)
    assert isinstance(made, AdapterRelease)
    assert files(made.path) == files(
        teach_alone(asked, {site: cohorts / site for site in SITES}, tmp_path / "alone").path
    )
    assert not any(hospitals.charges(name) for name in SITES)


@pytest.mark.parametrize("trust", [pytest.param("trusted", marks=pytest.mark.slow), "secure-sum"])
def test_a_private_release_charges_every_site_once(make, order, trust):
    hospitals = make(trust=[trust])
    asked = order(trust=trust)
    made = run(asked, hospitals.transport)
    assert made.private
    assert made.statement["guarantee"]["membership"]["epsilon"] <= 8
    for name in SITES:
        assert len(hospitals.charges(name)) == 1
        checks = verify(made.path, hospitals.ledger(name))
        assert all(check.passed for check in checks), checks
    before = files(made.path)
    assert files(run(asked, hospitals.transport).path) == before
    assert all(len(hospitals.charges(name)) == 1 for name in SITES)


def test_a_machine_that_mixes_patients_is_found_before_anybody_pays(make, order, monkeypatch):
    """In batches as large as the site's own; the aggregator is told why."""
    hospitals, shapes = make(trust=["secure-sum"], chunk=5), []

    def mixes(gradients, images, masks):
        shapes.append(len(images))
        raise InvalidValueError("the kernels of this machine mix; take a chunk of 1")

    monkeypatch.setattr(gradient_site, "check_rows", mixes)
    with pytest.raises(FederationError, match="take a chunk of 1"):
        run(order(), hospitals.transport)
    assert set(shapes) == {5}
    assert not any(hospitals.charges(name) for name in SITES)


def test_data_that_nobody_accepted_are_found_before_anybody_pays(make, order, cohorts):
    """At the last site; the first have not paid for it. Its own log says what is to be accepted."""
    hospitals = make(trust=["secure-sum"], settings="canal.toml")
    bad = hospitals.folder / "bad"
    shutil.copytree(cohorts / SITES[-1], bad)
    Image.new("L", (8, 8), 255).save(next((bad / "masks").iterdir()))
    images = hospitals.home(SITES[-1]) / "images"
    images.unlink()
    images.symlink_to(bad)
    for site in SITES:
        (hospitals.home(site) / "canal.toml").write_text("")
    with pytest.raises(FederationError, match="its own log says why"):
        run(order(), hospitals.transport)
    assert not any(hospitals.charges(name) for name in SITES)
    (hospitals.home(SITES[-1]) / "canal.toml").write_text('[data]\naccept = ["mask-size"]\n')
    hospitals.start()
    assert run(order(), hospitals.transport).private


class Told:
    """A transport that keeps what one site says of rounds."""

    def __init__(self, inner, site):
        self.inner, self.site, self.words = inner, site, []

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        answers = self.inner.ask(requests)
        if Message.from_bytes(requests[self.site]).head.get("step") == "rounds":
            self.words.append(Message.from_bytes(answers[self.site]).arrays["rounds"][0])
        return answers


@pytest.mark.parametrize("fresh", [True, False])
def test_every_round_has_a_mask_of_its_own(make, order, monkeypatch, fresh):
    """With one mask for all, sums are right, and two messages differ by what is under them."""
    if not fresh:
        masked = Session._masked
        monkeypatch.setattr(Session, "_masked", lambda self, made, _: masked(self, made, b""))
    told = Told(make(trust=["secure-sum"]).transport, SITES[0])
    run(order(trust="secure-sum"), told)
    differences = [one - other for one, other in combinations(told.words, 2)]
    assert len(differences) == ROUNDS * (ROUNDS - 1) / 2
    for words in differences:
        assert words.dtype == np.uint32
        counts = np.bincount(words >> 28, minlength=16)
        assert (stats.chisquare(counts).pvalue > ALPHA) == fresh


class Faulty:
    """A transport whose answers are lost at one question."""

    def __init__(self, inner, at):
        self.inner, self.at, self.count = inner, at, 0

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        self.count += 1
        answers = self.inner.ask(requests)
        if self.count == self.at:
            raise FederationError("the server died")
        return answers


@pytest.mark.slow
def test_stopped_at_every_question_it_comes_to_the_same_bytes(make, order):
    """All processes are started anew each time; sites say again what they said."""
    plan = PLAN | {"count": 0.05}
    whole = run(order("whole", plan, seed=3), make(research=True).transport)
    hospitals, torn = make("again", research=True), order("torn", plan, seed=3)
    questions = 0
    for at in range(1, 20):
        hospitals.start()
        transport = Faulty(hospitals.transport, at)
        try:
            made = run(torn, transport)
        except FederationError:
            questions += 1
            continue
        break
    assert questions > 6
    assert files(made.path) == files(whole.path)


@pytest.mark.parametrize(
    "stops",
    [
        (4, 6),  # agree, finish
        # Consider, agree, every round, finish; some of them twice.
        pytest.param((3, 4, 5, 5, 6, 6), marks=pytest.mark.slow),
    ],
)
def test_stopped_where_somebody_is_protected_nobody_pays_twice(make, order, stops):
    hospitals, asked = make(), order()
    for at in stops:
        hospitals.start()
        with pytest.raises(FederationError, match="the server died"):
            run(asked, Faulty(hospitals.transport, at))
    hospitals.start()
    made = run(asked, hospitals.transport)
    for name in SITES:
        assert len(hospitals.charges(name)) == 1
        assert all(check.passed for check in verify(made.path, hospitals.ledger(name)))
        session = next((hospitals.home(name) / "sessions").iterdir())
        assert (session / "finished").read_text() == made.manifest.digest
        assert not list(session.glob("answer-*")) + list(session.glob("sum-*"))
        assert not (session / "secret").exists()
        told = history(hospitals.home(name))["sessions"]
        assert [(each["kind"], each["times"], each["unit"], each["state"]) for each in told] == [
            ("adapters", ROUNDS, "membership", "finished")
        ]


def less_noise(head, arrays):
    head["stated"]["sigma"] = [0.9 * sigma for sigma in head["stated"]["sigma"]]


def crowd(head, arrays):
    """One accomplice under 500 entries: an honest site's share would be a five-hundredth."""
    agreed = head["contract"]["spec"]
    agreed["cohorts"] = [*["south"] * 500, *(name for name in SITES if name != "south")]
    agreed["plan"]["sites"] = len(agreed["cohorts"])


def another_sum(head, arrays):
    if head["number"] == 2:  # of round 0, of which the site keeps another one
        arrays["rounds"] = arrays["rounds"] + np.int32(1)
        head["number"] = 1


@pytest.mark.parametrize(
    ("kind", "change", "match"),
    [
        ("prepare", less_noise, "derived other numbers"),
        ("prepare", crowd, "for 502 sites of different cohorts, but there are 3"),
        ("commit", set_in("contract", "spec", "plan", "epsilon", value=9.0), "derived other"),
        ("commit", set_in("contract", "spec", "plan", "allocation", value="none"), "hides nobody"),
        ("prepare", set_in("contract", "spec", "plan", "parameters", value=7), "does not fit"),
        ("prepare", set_in("contract", "kind", value="features"), "cannot be understood"),
        ("prepare", set_in("contract", "spec", "public", "bounds", value=[0.0]), "does not fit"),
        ("prepare", set_in("contract", "spec", "noise", value="seed 3"), "seeded noise"),
        ("rounds", set_in("number", value=ROUNDS), "no rounds 3"),
        ("rounds", set_in("number", value=-1), "no rounds -1"),
        ("rounds", another_sum, "answered before, to another request"),
        ("handshake", set_in("initialisation", value="a" * 64), "did not come yet"),
        ("handshake", set_in("release", value="features"), "another kind of release"),
    ],
)
def test_a_site_refuses(make, order, kind, change, match):
    hospitals = make()
    with pytest.raises(FederationError, match=match):
        run(order(), Malicious(hospitals.transport, kind, change))


def test_one_network_a_round_whatever_it_is_told(make, order):
    """A second sum for a round, a round ahead of its time, a sum of nothing that was asked."""
    hospitals = make()
    with pytest.raises(FederationError, match="the server died"):
        run(order(), Faulty(hospitals.transport, 6))  # the second round was answered
    site = hospitals.sites["north"]
    folder = next((hospitals.home("north") / "sessions").iterdir())
    size = Message.from_bytes((folder / "sum-000000").read_bytes()).arrays["sum"].size
    other, beside = np.zeros(size, np.int32), "comes with what was published"
    for number, arrays, word in (
        (1, {"rounds": other}, "answered before, to another request"),
        (2, {}, beside),
        (2, {"latest": other}, beside),
        (2, {"rounds": other, "more": other}, beside),
        (2, {"rounds": other[1:]}, "another shape"),
        (2, {"rounds": other.astype(float)}, "another shape"),
        (0, {"rounds": other}, "answered before, to another request"),
        (3, {"rounds": other}, "has no rounds 3"),
    ):
        about = {"kind": "sum", "session": folder.name, "step": "rounds", "number": number}
        answer = tell(site, about, arrays)
        assert word in answer["error"]
    for step in ("features", "statistics", "count"):
        answer = tell(site, about | {"step": step, "number": 0})
        assert f"this release has no {step} 0" in answer["error"]
    about = {"kind": "announce", "session": folder.name, "numbers": {}}
    assert "nobody counts it" in tell(site, about | {"statistics": {"patients": 40960}})["error"]


def test_a_basis_is_that_of_the_contract(make, order):
    """Before and after it came; what was kept stays, and the release comes."""
    hospitals, asked = make(), order(plan=PLAN | BASIS)
    spy = Spy(hospitals.transport, "upload")
    with pytest.raises(FederationError, match="stopped"):
        run(asked, spy)
    (head,), north = spy.heads("prepare"), hospitals.sites["north"]
    assert "did not come yet" in tell(north, head | {"kind": "commit"})["error"]
    spy = Spy(hospitals.transport, "rounds")
    found = {}
    spy.kind, spy.change = "upload", lambda head, arrays: found.update(arrays)
    with pytest.raises(FederationError, match="stopped"):
        run(order("other", plan=PLAN | BASIS), spy)
    basis, later = dict(found), spy.heads("commit")[0]
    other = basis | {"scale": basis["scale"] * np.float32(1.5)}
    junk = ({}, {"kept": basis["kept"]}, basis | {"scale": basis["scale"][:-1]}, other)
    for about in (head, later):
        before = {path: path.read_bytes() for path in journals(hospitals)[0].glob("inputs/*")}
        for arrays in junk:
            assert "basis" in tell(north, upload(about, 0), arrays)["error"]
        assert "no public basis" in tell(north, upload(about, 1), basis)["error"]
        after = {path: path.read_bytes() for path in journals(hospitals)[0].glob("inputs/*")}
        assert before == after
    assert tell(north, head)["lacking"] == [0]
    hospitals.start()
    for out in ("release", "other"):
        assert run(order(out, plan=PLAN | BASIS), hospitals.transport).private
    assert all(len(hospitals.charges(name)) == 2 for name in SITES)


def test_the_count_is_asked_for_and_then_published(make, order):
    hospitals, asked = make(), order(plan=PLAN | {"count": 0.05})

    def stopped(until):
        spy = Spy(hospitals.transport, until)
        with pytest.raises(FederationError, match="stopped"):
            run(asked, spy)
        return {"session": spy.heads("commit")[0]["session"]}

    north = hospitals.sites["north"]
    announce = stopped("count") | {"kind": "announce", "numbers": {}}
    count = {"statistics": {"patients": 40960}}
    assert "count 0 was never answered here" in tell(north, announce | count)["error"]
    first = {"kind": "sum", "session": announce["session"], "step": "rounds", "number": 0}
    assert "count come first" in tell(north, first)["error"]
    stopped("announce")
    for statistics, word in (
        ({"patients": 1.5}, "a whole number of parts"),
        ({"patients": True}, "a whole number of parts"),
        ({"patients": 10**400}, "a whole number of parts"),
        ({"patients": 40960, "more": 1}, "published before the rounds"),
        ({}, "published before the rounds"),
        (None, "published before the rounds"),
    ):
        assert word in tell(north, announce | {"statistics": statistics})["error"]
    assert "count come first" in tell(north, first)["error"]
    assert run(asked, hospitals.transport).private


def test_a_budget_that_does_not_suffice(make, order):
    hospitals = make(epsilon=4.0)
    with pytest.raises(FederationError, match="membership budget of this site does not cover"):
        run(order(), hospitals.transport)
    assert not any(hospitals.charges(name) for name in SITES)


def test_the_number_of_patients_is_never_read_silently(make, order):
    with pytest.raises(FederationError, match="lacks patients"):
        run(order(plan={"epsilon": 8.0}), make().transport)
