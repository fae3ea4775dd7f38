"""Where figures of patients may be kept: nowhere in a release, by whatever way."""

import pytest

from canal.attacks.individual import check_place
from canal.errors import InvalidValueError
from canal.release.manifest import MANIFEST


def test_no_way_leads_into_a_release(tmp_path):
    release, kept = tmp_path / "run" / "release", tmp_path / "kept"
    (release / "own.private").mkdir(parents=True)
    kept.mkdir()
    (release / MANIFEST).touch()
    (tmp_path / "run" / "mine.private").mkdir()
    (release / "link.json").symlink_to(kept / "figures.json")
    for fine in (kept / "figures.json", tmp_path / "run" / "mine.private" / "figures.json"):
        check_place(fine, release, None)
    for place in (release / "x.json", release / "own.private" / "x.json", release / "link.json"):
        with pytest.raises(InvalidValueError, match="--private"):
            check_place(place, release, None)
