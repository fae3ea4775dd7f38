"""Statistics across sites: secure sum, one charge each, the same bytes as in one process."""

import json

import numpy as np
import pytest
from PIL import Image

from canal.data.overlap import compare
from canal.errors import FederationError
from canal.federation.aggregate import run
from canal.federation.history import history
from canal.federation.identity import Identity
from canal.federation.message import Message
from canal.federation.settings import Order, to_toml
from canal.federation.site import Site
from canal.federation.transport import InMemory
from canal.privacy import Ledger
from canal.release.mechanism import LocalFederation, noise_of
from canal.release.publish import publish
from canal.release.verification import verify
from canal.statistics.mechanism import StatisticsMechanism, StatisticsSpec
from canal.statistics.patients import load
from canal.statistics.plan import StatisticsPlan
from canal.statistics.release import ABSENT_HERE, StatisticsRelease

SITES = ("north", "south", "west")


def write_images(folder, seed):
    """Nine pictures of all sizes; masks on eight of them."""
    draw = np.random.default_rng(seed)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for number in range(9):
        shape = tuple(draw.integers(20, 400, 2))
        pixels = draw.integers(0, draw.integers(10, 256), shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{seed}-{number}.png")
        if number:
            mask = np.where(draw.random(shape) < draw.random() ** 4, 255, 0).astype(np.uint8)
            Image.fromarray(mask).save(folder / "masks" / f"{seed}-{number}.png")


class Hospitals:
    """Three sites that have nothing but messages in common."""

    def __init__(self, folder, **terms):
        self.folder, prints = folder, {}
        for number, name in enumerate(SITES):
            home = self.home(name)
            write_images(home / "pictures", number)
            prints[name] = Identity.create(home, name).fingerprint
            Ledger(home / "ledger.sqlite").set_budget(name, "membership", epsilon=3.0, delta=1e-5)
            known = {"name": name, "images": "pictures", "colluding": 0}
            (home / "site.toml").write_text(to_toml(known | terms))
        for name in SITES:
            (self.home(name) / "roster.json").write_text(json.dumps(prints))
        self.sites = {name: Site.open(self.home(name)) for name in SITES}

    def home(self, name):
        return self.folder / "sites" / name

    def ledger(self, name):
        return Ledger(self.home(name) / "ledger.sqlite")

    def order(self, out="statistics", **choices):
        known = {"release": "statistics", "plan": {"epsilon": 1.0}}
        return Order(folder=self.folder, out=out, **(known | choices))

    @property
    def transport(self):
        return InMemory({name: site.answer for name, site in self.sites.items()})


@pytest.fixture
def make(tmp_path):
    return lambda **terms: Hospitals(tmp_path / "hospitals", **terms)


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("trust", "colluding"), [("secure-sum", 0), ("secure-sum", 1), ("trusted", 0)]
)
def test_it_is_byte_for_byte_the_release_of_one_process(make, tmp_path, trust, colluding):
    hospitals = make(research=True, trust=["trusted", "secure-sum"])
    asked = hospitals.order(trust=trust, colluding=colluding, seed=5)
    made = run(asked, hospitals.transport)
    assert isinstance(made, StatisticsRelease)
    assert [check.what for check in verify(made.path) if check.passed is False] == []
    sites = [load(name, hospitals.home(name) / "pictures") for name in SITES]
    plan = StatisticsPlan(1.0, sites=3, trust=trust, colluding=colluding)
    mechanism = StatisticsMechanism(StatisticsSpec(plan, SITES, noise_of(5)))
    elsewhere = compare(None, frozenset(), frozenset()) | ABSENT_HERE
    publish(tmp_path / "alone", mechanism, LocalFederation(sites), overlap=elsewhere)
    assert files(made.path) == files(tmp_path / "alone")
    assert not any(hospitals.ledger(name).rows()[1:] for name in SITES)


@pytest.mark.parametrize("trust", ["secure-sum", "trusted"])
def test_a_private_release_charges_every_site_once(make, trust):
    hospitals = make(trust=[trust])
    asked = hospitals.order(trust=trust, colluding=0)
    made = run(asked, hospitals.transport)
    assert made.private
    before = files(made.path)
    assert files(run(asked, hospitals.transport).path) == before
    for name in SITES:
        rows = [row for row in hospitals.ledger(name).rows() if row.action == "reserve"]
        assert {(row.cohort, row.unit) for row in rows} == {(name, "membership"), (name, "patient")}
        assert len(rows) == 2
        checks = verify(made.path, hospitals.ledger(name))
        assert [check.what for check in checks if check.passed is False] == []
        (told,) = history(hospitals.home(name))["sessions"]
        assert (told["kind"], told["state"], told["times"]) == ("statistics", "finished", 1)


def test_what_a_site_sends_is_masked(make):
    """Words of all bits, and nothing else that could be votes."""
    hospitals, sent = make(), []

    class Wire(InMemory):
        def ask(self, requests):
            answers = super().ask(requests)
            sent.extend(Message.from_bytes(each) for each in answers.values())
            return answers

    wire = Wire({name: site.answer for name, site in hospitals.sites.items()})
    run(hospitals.order(colluding=0), wire)
    arrays = [array for message in sent for array in message.arrays.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.uint32)}
    words = np.concatenate([array.ravel() for array in arrays])
    assert len(words) == 3 * 34
    # A vote and its noise are below 2^20; uniform words are, with probability 2^-12 each.
    assert (words < 2**20).mean() < 0.1


def test_a_site_holds_an_aggregator_to_its_word(make):
    hospitals = make()
    order = hospitals.order(colluding=0)

    class Lies(InMemory):
        def ask(self, requests):
            for site, content in requests.items():
                message = Message.from_bytes(content)
                if message.head["kind"] == "prepare":
                    head = json.loads(json.dumps(message.head))
                    head["stated"]["sigma"]["count"] /= 2
                    requests = requests | {site: Message(head, message.arrays).to_bytes()}
            return super().ask(requests)

    lying = Lies({name: site.answer for name, site in hospitals.sites.items()})
    with pytest.raises(FederationError, match="this site derived other numbers"):
        run(order, lying)
    assert not any(hospitals.ledger(name).rows()[1:] for name in SITES)


def test_sites_that_cannot(make, tmp_path):
    hospitals = make(images="")
    with pytest.raises(FederationError, match="names no images of its patients"):
        run(hospitals.order(colluding=0), hospitals.transport)
    with pytest.raises(FederationError, match="lacks epsilon"):
        run(hospitals.order("other", plan={}), hospitals.transport)
    hospitals = Hospitals(tmp_path / "poor")
    with pytest.raises(FederationError, match="budget"):
        run(hospitals.order(colluding=0, plan={"epsilon": 4.0}), hospitals.transport)


@pytest.mark.slow
def test_over_flare(make):
    """In its simulator: a process for each site, and one for the server."""
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is absent; pip install 'canal[federation]'")
    from canal.federation.job import simulate

    hospitals = make(research=True, trust=["secure-sum"])
    asked = {"release": "statistics", "out": "over-flare", "colluding": 0, "seed": 5}
    (hospitals.folder / "order.toml").write_text(to_toml(asked | {"plan": {"epsilon": 1.0}}))
    homes = {name: hospitals.home(name) for name in SITES}
    simulate(hospitals.folder / "flare", homes, hospitals.folder / "order.toml")
    over_flare = files(hospitals.folder / "over-flare")
    made = run(hospitals.order(colluding=0, seed=5), hospitals.transport)
    assert over_flare == files(made.path)
