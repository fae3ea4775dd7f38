"""Rosters: a site takes no part with sites that it does not know."""

import pytest

from canal.federation.contract import member
from canal.federation.identity import Identity
from canal.federation.masks import Keys
from federation.malicious import refused, unpaid

pytestmark = pytest.mark.usefixtures("small_blocks")


class TestRosters:
    """A site knows the others' certificates beforehand."""

    def forged(self, tmp_path, name="south", identity=None):
        """An entry for a site, with keys that the aggregator knows."""
        identity = identity or Identity.create(tmp_path / "forged", name)

        def change(head, arrays):
            contract = head["contract"]
            public = Keys.generate().public
            contract["roster"][name] = member(name, contract["session"], public, identity)

        return change

    def test_another_certificate_under_the_same_name(self, hospitals, make_order, tmp_path):
        refused(
            hospitals, make_order(), "commit", self.forged(tmp_path), "'south' is unknown here, or"
        )
        assert unpaid(hospitals)

    def test_another_key_with_the_right_certificate(self, hospitals, make_order, tmp_path):
        """The signature is of another identity."""
        forger = Identity.create(tmp_path / "forger", "south")
        real = hospitals.sites["south"].identity
        identity = Identity(real.certificate, forger.key)
        change = self.forged(tmp_path, identity=identity)
        refused(hospitals, make_order(), "commit", change, "does not belong to its certificate")

    def test_a_key_of_another_session(self, hospitals, make_order):
        """Signed by the right site, once, for something else."""
        real = hospitals.sites["south"].identity

        def change(head, arrays):
            public = Keys.generate().public
            head["contract"]["roster"]["south"] = member("south", "f" * 32, public, real)

        refused(hospitals, make_order(), "commit", change, "does not belong to its certificate")

    def test_a_site_that_nobody_knows(self, hospitals, make_order, tmp_path):
        stranger = Identity.create(tmp_path / "stranger", "stranger")

        def change(head, arrays):
            contract = head["contract"]
            public = Keys.generate().public
            contract["roster"]["stranger"] = member(
                "stranger", contract["session"], public, stranger
            )
            contract["spec"]["cohorts"].append("stranger")
            contract["spec"]["plan"]["participants"]["teachers"] += 1

        refused(hospitals, make_order(), "commit", change, "'stranger' is unknown here")

    def test_fewer_sites_than_the_plan_has(self, hospitals, make_order):
        def change(head, arrays):
            del head["contract"]["roster"]["south"]

        refused(hospitals, make_order(), "commit", change, "not that of the cohorts")

    def test_a_site_whose_own_key_was_exchanged(self, hospitals, make_order):
        """By one that it signed itself, in the same session; it has another now."""
        real = hospitals.sites["north"].identity

        def change(head, arrays):
            contract = head["contract"]
            public = Keys.generate().public
            contract["roster"]["north"] = member("north", contract["session"], public, real)

        refused(hospitals, make_order(), "commit", change, "another key for 'north' than its own")
