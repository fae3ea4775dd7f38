"""A release of adapters that tests change, and the ledger that was charged for it."""

from canal.gradients.plan import TENSOR
from canal.release.card import render
from canal.release.shard import write_shard
from canal.release.verification import verify
from victim import Victim

COHORTS = ("dermoscopy", "ultrasound")


class Charged(Victim):
    """A release of adapters, and the ledger that was charged."""

    def __init__(self, folder, ledger):
        super().__init__(folder, render)
        self.ledger = ledger

    def rewrite(self, content, number, integers, stamp=""):
        """Other sums in a file that is well made, with the digest that the manifest says."""
        made = write_shard(self.folder / self.shards[number], integers[None], stamp, TENSOR)
        content["shards"][number] = made.to_json()

    def failed(self, *, ledger=True):
        """What was found to be wrong."""
        found = verify(self.folder, self.ledger if ledger else None)
        assert not [check for check in found if "\n" in check.detail]
        return [check.what for check in found if check.passed is False]
