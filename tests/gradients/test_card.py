"""The privacy card of an adapter release: what the manifest says, and nothing that it does not."""

import pytest

from canal.release.card import DIGEST_LETTERS, headline_epsilon, render


@pytest.fixture(scope="module")
def made(make_release, tmp_path_factory):
    """Releases to read: counted, without noise, and of one round."""
    folder = tmp_path_factory.mktemp("cards")
    return {
        "counted": make_release(folder / "counted", "channels", seed=3, plan={"count": 0.05}),
        "none": make_release(folder / "none", "none", not_private=True, plan={"rounds": 1}),
    }


def test_a_card_names_what_a_reader_must_know(made):
    manifest = made["counted"].manifest
    page = render(manifest)
    assert page == (made["counted"].path / "card.html").read_text()
    for word in ("dermoscopy", "ultrasound", "counted with noise", "channels", "norms", "head"):
        assert word in page
    assert manifest.digest[:DIGEST_LETTERS] in page
    assert f"{manifest.plan['parameters']:,}".replace(",", "") in page.replace("\u202f", "")
    for shard in manifest.shards:
        assert shard["file"] in page


def test_two_relations_are_told_apart():
    promised = {"membership": {"epsilon": 8.0}, "patient": {"epsilon": 19.1}}
    statement = {"delta": 1e-5, "guarantee": promised}
    assert "who is added or removed, at" in headline_epsilon(statement, "membership")
    assert "who is replaced by another, at" in headline_epsilon(statement, "patient")
    del promised["membership"]
    assert "of a training cohort, at" in headline_epsilon(statement, "patient")


def test_a_card_of_a_research_run_warns(made):
    for release in made.values():
        assert release.statement["stamp"] in render(release.manifest)
    assert "No guarantee" in render(made["none"].manifest)


def test_what_a_site_calls_itself_is_text(made):
    """Names come from people; none of them becomes a part of the page."""
    manifest = made["counted"].manifest
    manifest.participants["cohorts"][0] = "<script>alert(1)</script>"
    try:
        page = render(manifest)
    finally:
        manifest.participants["cohorts"][0] = "dermoscopy"
    assert "<script>alert" not in page
