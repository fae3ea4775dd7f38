"""A patient at two sites, or among the public images, is found before anybody pays."""

import pytest

from canal.errors import DataError
from canal.gradients.patients import Patients
from canal.gradients.release import train
from canal.privacy.gaussian import epsilon_from_rho


@pytest.mark.parametrize("who", ["another site's patients", "the recipient's images"])
def test_overlap_is_refused_before_anybody_pays(places, shared, sites, make_plan, recipient, who):
    place, there = places(), shared()
    arrays = sites[0].arrays if who == "another site's patients" else recipient
    copied = Patients("ultrasound", arrays.rows(arrays.ids[:2]), chunk=4)
    said = "2 images of cohort 'dermoscopy' are in" if arrays is not recipient else "of the queries"
    with pytest.raises(DataError, match=said) as caught:
        train(place.out, [sites[0], copied], there, make_plan(), ledger=place.ledger)
    trained = "the shared initialisation was trained on 2 images of cohort 'ultrasound'"
    assert (trained in str(caught.value)) == (arrays is recipient)
    assert not place.charges()


def test_what_was_compared_is_recorded_and_who_is_there_twice_is_priced(make_release, places):
    place = places()
    release = make_release(place.out, ledger=place.ledger)
    assert set(release.manifest.record["overlap"].values()) == {"checked"}
    (sentence,) = (s for s in release.statement["assumptions"] if "more than one cohort" in s)
    for unit, how in (("membership", "(added or removed)"), ("patient", "(replaced)")):
        once = release.statement["guarantee"][unit]["rho"]
        for times in (2, 3):
            exact = epsilon_from_rho(times**2 * once, release.plan.delta)
            words = sentence.split(f"for one who is in {times}")[0].split(how)[-2]
            assert exact <= float(words.split()[-1]) <= exact * 1.01
