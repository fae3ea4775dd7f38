"""What a person sees while patients teach: rounds, and what they cost so far."""

import pytest

from canal.cli.progress import rounds
from canal.gradients.release import Progress


@pytest.mark.parametrize(
    ("epsilon", "watched", "seen"),
    [(1.2345, True, True), (None, True, False), (1.2345, False, False)],
)
def test_rounds_tell_what_is_spent(capsys, monkeypatch, epsilon, watched, seen):
    """A research run spends nothing; where nobody watches, nothing is said."""
    monkeypatch.setenv("FORCE_COLOR", "1") if watched else monkeypatch.delenv(
        "FORCE_COLOR", raising=False
    )
    monkeypatch.setenv("COLUMNS", "120")
    with rounds("teaching", 3) as report:
        report(Progress(2, 3, epsilon))
    said = capsys.readouterr().err
    assert ("epsilon 1.23 spent" in said) == seen
    assert ("teaching" in said) == watched
