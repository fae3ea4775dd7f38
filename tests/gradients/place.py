"""Where tests make a release of adapters, and what they see there afterwards."""

from collections import Counter

from canal.gradients.target_modules import HEAD, NORMS, Adapter
from canal.privacy import Ledger

COHORTS = ("dermoscopy", "ultrasound")
# Few parameters, all of them asked for: what tests of anything else teach.
FEW = Adapter((NORMS, HEAD))
PAIRS = {(cohort, unit) for cohort in COHORTS for unit in ("membership", "patient")}


class Place:
    """Where one release is made: `out`, the private folder beside it, and a ledger."""

    def __init__(self, folder):
        folder.mkdir()
        self.out, self.private = folder / "release", folder / "release.private"
        self.secret = self.private / "secret"
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.ledger.set_budget(COHORTS, "membership", epsilon=8.0, delta=1e-5)

    def files(self):
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def charges(self, action="reserve"):
        """How often each release was charged to each cohort under each unit, or finished there."""
        rows = [row for row in self.ledger.verify() if row.action == action]
        return Counter((row.key, row.cohort, row.unit, row.rho, row.draws) for row in rows)


def assert_charged_once(place):
    made = place.charges()
    assert {(cohort, unit) for _, cohort, unit, *_ in made} == PAIRS
    assert set(made.values()) == {1}
    assert len({key for key, *_ in made}) == 1
    assert place.charges("commit") == made


class Killed(BaseException):
    """What nothing in the code expects."""
