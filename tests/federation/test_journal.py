"""What a site keeps of a session while it lasts, and what is left of it."""

from canal.federation.journal import Journal
from canal.privacy.keystore import is_kept


def test_a_sites_secret_is_its_own_and_goes_with_the_session(tmp_path):
    """Two sites of one session have the same name for it, and nothing else in common."""
    journals = [Journal(tmp_path / site / ("a" * 32)) for site in ("north", "south")]
    values = []
    for journal in journals:
        with journal.open(new=True):
            value = journal.secret().value
            assert journal.secret().value == value
            values += [value, journal.keys().private]
    assert len(set(values)) == 4
    assert not any(journals[0].folder.name.encode() in value for value in values)
    for journal in journals:
        with journal.open():
            journal.finish("digest")
        assert not any(is_kept(journal.folder / name) for name in ("secret", "keys"))
