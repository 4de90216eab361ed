"""docs/views.md is what the transcripts say today."""

from __future__ import annotations

import pytest

from leakboard.core import registry
from leakboard.leaderboard.cli.views_doc import THREATS, views_markdown

pytestmark = pytest.mark.slow  # real keys of 2048 bits


@pytest.fixture(scope="module")
def text() -> str:
    return views_markdown()


def test_the_document_is_up_to_date(text: str) -> None:
    kept = (registry.ROOT / "docs" / "views.md").read_text()
    assert kept == text, "run: make docs"


def test_it_shows_every_defense_and_threat(text: str) -> None:
    for name in registry.entries("defense"):
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert all(f"`{threat}`" in section for threat in THREATS)


def test_it_shows_what_the_paper_does_not_say(text: str) -> None:
    """The server gets Psi and Phi of every client; a client gets no gradient, and never the secret."""
    section = text.partition("\n## mp-dp\n")[2].partition("\n## ")[0]
    server, client = (section.partition(f"`{threat}`")[2].partition("###")[0] for threat in ("server", "client"))
    assert "`psi`" in server
    assert "`phi`" in server
    assert "`secret`" in server
    assert "individual gradients of clients 0, 1, 2" in server
    assert "`secret`" not in client
    assert "no gradient" in client
