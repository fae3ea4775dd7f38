"""Where one release is made, and what must hold there whatever happens."""

import binascii
import hashlib
from collections import Counter

from canal.privacy import Ledger
from canal.release.manifest import MANIFEST
from canal.release.verification import verify

SECRET = hashlib.sha256(b"thirty-two bytes, the same in every run").digest()
SITES = ("north", "south", "west")
UNITS = {"honest": "patient", "paper": "paper"}  # whose budget each preset needs


def holds(path, value):
    """Whether a file has these bytes in it: raw, in base 64, or the first eight of them in hex."""
    content = path.read_bytes()
    base64 = binascii.b2a_base64(value, newline=False)[:40]
    return value in content or base64 in content or value[:8].hex().encode() in content.lower()


class Place:
    """Where one release is made: `out`, the private folder beside it, and a ledger."""

    def __init__(self, folder):
        folder.mkdir()
        self.out = folder / "release"
        self.private = folder / "release.private"
        self.secret = self.private / "secret"
        self.memory = folder / "memory"  # where keys go
        self.memory.mkdir()
        self.ledger = Ledger(folder / "ledger.sqlite")

    def give_secret(self):
        """Put the secret where a run that was stopped would have left it."""
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.secret.touch(mode=0o600)
        self.secret.write_bytes(SECRET)

    def files(self):
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def charges(self, action="reserve"):
        """How often each release was charged to each cohort under each unit, or finished there."""
        rows = [row for row in self.ledger.verify() if row.action == action]
        return Counter((row.key, row.cohort, row.unit, row.rho, row.draws) for row in rows)

    def paid(self):
        """Keys of the releases that were charged."""
        return {key for key, *_ in self.charges()}


def keys_in(*folders):
    """Files that hold the secret, wherever they are."""
    found = [path for folder in folders for path in folder.rglob("*")]
    return [path for path in found if path.is_file() and holds(path, SECRET)]


def assert_nothing_is_half_done(place, reference):
    """After a kill: whole or not at all, never beside its key; nothing is paid for and lost."""
    published, sealed = place.out.exists(), (place.private / "release" / MANIFEST).exists()
    if published:
        assert place.files() == reference
        assert not [check for check in verify(place.out) if check.passed is False]
        assert not keys_in(place.out.parent)
    for kept in [*place.private.glob("*secret*"), *place.memory.rglob("secret")]:
        if kept.exists():  # a link is made before that to which it leads
            assert kept.stat().st_mode & 0o777 == 0o600
    for folder in (place.private, *place.memory.iterdir()):
        assert not folder.exists() or folder.stat().st_mode & 0o777 == 0o700
    if place.paid() and not published and not sealed:
        assert place.secret.read_bytes() == SECRET
    if place.charges("commit"):
        assert published or sealed


def assert_charged_once(place):
    """One release; one reserve and one commit for each cohort in each unit that it costs."""
    assert len(place.paid()) == 1
    assert {cohort for _, cohort, *_ in place.charges()} >= set(SITES)
    assert set(place.charges().values()) == {1}
    assert place.charges("commit") == place.charges()


def assert_finished(place, reference):
    """The bytes of a run that nobody disturbed, one charge, and no secret anywhere."""
    assert place.files() == reference
    assert_charged_once(place)
    assert all(check.passed for check in verify(place.out, place.ledger))
    left = [*place.out.iterdir(), *place.private.rglob("*")]
    assert not {"release", "statistics.json"} & {path.name for path in left}
    assert not [path for path in left if path.suffix == ".part" or "secret" in path.name]
    assert not keys_in(place.out.parent)
    assert not list(place.memory.iterdir())


def keep_the_secret(place):
    """Where a run was stopped before it kept its secret, nothing depends on it: give it ours."""
    if not place.paid() and not place.secret.exists():
        place.give_secret()
