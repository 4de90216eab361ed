"""Documents become pages: headings with ids, links that work inside the site, nothing from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core.errors import UserError
from leakboard.leaderboard.site.documents import Document, render


def rendered(root: Path, text: str, path: str = "docs/a.md") -> Document:
    (root / "docs").mkdir(exist_ok=True)
    (root / path).write_text(text)
    return render(root, path)


def test_headings_get_the_ids_that_github_gives_them(tmp_path: Path) -> None:
    found = rendered(tmp_path, "# The `title`\n\n## What Ψ is\n\n## Again\n\n### Deep\n\n## Again\n")
    assert (found.title, found.page) == ("The title", "docs/a.html")
    assert found.heading == '<h1 id="the-title">The <code>title</code></h1>\n'
    assert found.headings == (("what-ψ-is", "What Ψ is"), ("again", "Again"), ("again-1", "Again"))
    assert '<h3 id="deep">' in found.body


def test_links_lead_to_pages_and_files_are_taken_along(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "leaderboard" / "published").mkdir(parents=True)
    for name in ("docs/b.md", "docs/c d.png", "README.md"):
        (tmp_path / name).write_text("x")
    text = "[b](b.md#x) [r](../README.md) [p](../leaderboard/published) [s](#here) [o](https://e.f/g.md)\n"
    found = rendered(tmp_path, text + "![c](c%20d.png)")
    for expected in ('"b.html#x"', '"../README.html"', '"../index.html"', '"#here"', '"https://e.f/g.md"'):
        assert f"href={expected}" in found.body
    assert 'rel="noreferrer"' in found.body
    assert found.files == ("docs/c d.png",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x](gone.md)", "links to gone.md, which is not there"),
        ("[x](../../outside.md)", "which is not there"),
        ("[x](../docs)", "links to the folder docs"),
        ("![x](https://e.f/g.png)", "shows an image from outside"),
    ],
)
def test_what_a_site_cannot_have_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path.parent / "outside.md").write_text("x")
    with pytest.raises(UserError, match=said):
        rendered(tmp_path, text)


def test_html_is_text_and_code_and_tables_scroll(tmp_path: Path) -> None:
    found = rendered(tmp_path, "<script>x</script>\n\n    a <b>\n\n```python\n<c>\n```\n\n| d |\n|---|\n| <i>e</i> |\n")
    assert "<script" not in found.body
    assert "&lt;i&gt;e" in found.body
    assert found.body.count('<pre tabindex="0"') == 2
    assert '<div class="scroll" role="group" aria-label="Table" tabindex="0"><table class="plain">' in found.body


def test_columns_are_aligned_without_inline_styles(tmp_path: Path) -> None:
    found = rendered(tmp_path, "| a | b |\n|---|---:|\n| c | 1 |\n")
    assert "style" not in found.body
    assert found.body.count('class="right"') == 2


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "vbscript:x"])
def test_an_address_that_runs_is_no_link(tmp_path: Path, address: str) -> None:
    assert "<a" not in rendered(tmp_path, f"[x]({address})").body
