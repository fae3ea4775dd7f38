"""The record: what the makers say is fixed when the release begins, and readable on its card."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from canal import version
from canal.errors import InvalidValueError, ReleaseError
from canal.features import mechanism as mechanism_module
from canal.features.release import Options, create
from canal.release import record
from canal.release.card import render
from canal.release.manifest import CARD, FORMAT, MANIFEST
from canal.release.record import About
from canal.release.verification import verify

NEXT_DAY = str(int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()))


class Stop(Exception):  # noqa: N818
    """A run that ends here, as if it had been killed."""


@pytest.fixture
def make(tmp_path, ensemble, queries, make_plan, monkeypatch):
    """A seeded release of three shards; it can be stopped behind its first."""
    monkeypatch.setattr(mechanism_module, "ROWS", 16)
    plan = make_plan()

    def made(name, *, stop=False, about=None):
        done = []

        def progress(more):
            done.append(more)
            if stop and sum(done) > 60:
                raise Stop

        return create(
            tmp_path / name,
            *(ensemble, queries, plan),
            seed=1,
            about=about,
            options=Options(progress=progress),
        )

    return made


def files(release):
    return {path.name: path.read_bytes() for path in release.path.iterdir()}


def test_a_release_that_was_cut_off_keeps_the_day_that_it_began(make, tmp_path, monkeypatch):
    """A seeded release of that day has the same bytes, whenever it was finished."""
    about = About(purpose="a student for the clinic", contact="privacy@example.org")
    whole = make("whole", about=about)
    with pytest.raises(Stop):
        make("stopped", stop=True, about=about)
    assert (tmp_path / "stopped.private" / "record.json").is_file()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", NEXT_DAY)
    finished = make("stopped", about=about)
    assert finished.manifest.record["date"] == "2026-01-01"
    assert files(finished) == files(whole)
    later = make("later", about=about)
    assert later.manifest.record == whole.manifest.record | {"date": "2026-01-02"}


def test_today_is_in_utc(monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    before = datetime.now(UTC).date().isoformat()
    assert before <= record.today() <= datetime.now(UTC).date().isoformat()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "tomorrow")
    with pytest.raises(InvalidValueError, match="unset it"):
        record.today()


def test_another_purpose_is_another_release(make):
    with pytest.raises(Stop):
        make("release", stop=True, about=About(purpose="research"))
    with pytest.raises(ReleaseError, match="began with purpose 'research', not ''"):
        make("release")
    make("release", about=About(purpose="research"))
    with pytest.raises(ReleaseError, match="began with purpose 'research', not 'a product'"):
        make("release", about=About(purpose="a product"))


def test_code_that_finished_a_release_is_named_beside_code_that_began_it(make, monkeypatch):
    with pytest.raises(Stop):
        make("release", stop=True)
    monkeypatch.setattr(record, "code_digest", lambda: "ee" * 32)
    made = make("release")
    assert made.manifest.record["code"] == [version.code_digest(), "ee" * 32]
    assert not [check for check in verify(made.path) if check.passed is False]


def test_the_code_digest_sees_every_byte_and_every_name(tmp_path, monkeypatch):
    monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
    source = tmp_path / "privacy" / "ledger.py"
    source.parent.mkdir()
    source.write_text("spent = 1\n")
    seen = {version.code_digest.__wrapped__()}
    source.write_text("spent = 0\n")
    seen.add(version.code_digest.__wrapped__())
    source.rename(source.with_name("chain.py"))
    seen.add(version.code_digest.__wrapped__())
    (tmp_path / "privacy" / "ledger.pyc").touch()
    assert len(seen | {version.code_digest.__wrapped__()}) == 3


def test_what_the_makers_say_is_on_the_card(make):
    made = make("release", about=About(purpose="students for <b>clinics</b>"))
    page = (made.path / CARD).read_text()
    assert "students for &lt;b&gt;clinics&lt;/b&gt;" in page
    assert "<dt>Contact</dt><dd>not stated</dd>" in page
    assert f"<code>{version.code_digest()}</code>" in page


@pytest.mark.parametrize(
    "words",
    [{"purpose": "two\nlines"}, {"contact": "x" * 501}, {"purpose": 3}, {"date": "19.11.2026"}],
)
def test_what_cannot_be_read_on_a_card_is_refused(words):
    with pytest.raises(InvalidValueError, match=next(iter(words))):
        About(**words)


@pytest.mark.parametrize(
    "forged", [{"date": "soon"}, {"purpose": 7}, {"code": []}, {"code": ["abc"]}, {"overlap": 0}]
)
def test_a_record_that_nobody_could_have_made_is_found(make, forged):
    made = make("release")
    manifest = replace(made.manifest, record=made.manifest.record | forged)
    (made.path / MANIFEST).write_bytes(manifest.to_bytes())
    (made.path / CARD).write_text(
        render(manifest) if not {"code", "overlap"} & forged.keys() else ""
    )
    assert "record" in {check.what for check in verify(made.path) if check.passed is False}


def test_a_release_of_an_older_format_is_refused_with_the_way_out(make, tmp_path):
    made = make("release")
    old = tmp_path / "old"
    shutil.copytree(made.path, old)
    content = (old / MANIFEST).read_bytes()
    (old / MANIFEST).write_bytes(content.replace(FORMAT.encode(), b"canal-release/2"))
    with pytest.raises(ReleaseError, match="with the version that made it"):
        type(made).open(old)
