"""The site as a folder: complete or absent, every link leads somewhere, nothing comes from outside."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markupsafe import escape

import leakboard as lb
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.page.page import anchor
from leakboard.leaderboard.publishing.submit import PUBLISHED, PUBLISHED_FILE
from leakboard.leaderboard.site.boards import warnings
from leakboard.leaderboard.site.plugins import plugin_pages
from leakboard.leaderboard.site.site import MARKER, build_site
from leakboard.leaderboard.tables.marks import BROKEN, SIGNS, WORDS
from tests.leaderboard.page.test_charts import a_run
from tests.leaderboard.page.test_page import HOSTILE, Page
from tests.leaderboard.site.conftest import WARNING, site_board


class SitePage(Page):
    """A page of the site; the drawing of a ROC and a rule have no closing tags either."""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    @property
    def ids(self) -> set[str]:
        return {attributes["id"] for _, attributes in self.found if "id" in attributes}

    @property
    def addresses(self) -> list[tuple[str, str]]:
        """All (tag, address) that the page names."""
        named = [(tag, attributes.get(name)) for tag, attributes in self.found for name in ("href", "src")]
        return [(tag, address) for tag, address in named if address is not None]


def pages(folder: Path) -> dict[str, SitePage]:
    return {path.relative_to(folder).as_posix(): SitePage(path) for path in sorted(folder.rglob("*.html"))}


def dead_links(folder: Path) -> list[str]:
    """Every internal link of a folder that leads to no file, or to no place on its page."""
    found = pages(folder)
    dead = []
    for name, page in found.items():
        for _, address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (folder / name).parent / unquote(parts.path) if parts.path else folder / name
            there = target.resolve().relative_to(folder.resolve()).as_posix()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in _ids(found[there])):
                dead.append(f"{name}: {address}")
    return dead


def _ids(page: SitePage) -> set[str]:
    return {unquote(name) for name in page.ids}


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    assert dead_links(site) == []


def test_the_check_sees_dead_links(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html">1</a><a href="#x">2</a><p id="y"><a href="a.html#y">3</a></p>')
    assert dead_links(tmp_path) == ["a.html: b.html", "a.html: #x"]


def test_everything_has_its_page(site: Path) -> None:
    found = set(pages(site))
    documents = {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    plugins = {f"{kind}s/{name}.html" for kind in ("defense", "attack") for name in registry.entries(kind)}
    assert found >= documents | plugins
    assert found >= {"index.html", "boards/first/index.html", "boards/second/index.html", "docs/publishing.html"}
    assert found >= {"defenses/index.html", "attacks/index.html", "README.html", "CONTRIBUTING.html"}
    assert (site / "docs" / "noise-laws.png").read_bytes() == (ROOT / "docs" / "noise-laws.png").read_bytes()


def test_no_page_loads_anything_from_outside(site: Path) -> None:
    for name, page in pages(site).items():
        outside = [(tag, address) for tag, address in page.addresses if urlsplit(address).scheme or "//" in address]
        assert {tag for tag, _ in outside} <= {"a"}, name
        assert all(re.match(r"https?://", address) for _, address in outside), name
        (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none'"), name
    assert "url(" not in "".join(path.read_text() for path in (site / "assets").glob("*.css"))


def test_warnings_come_before_every_number(site: Path) -> None:
    found = pages(site)
    for name in ("index.html", "defenses/mp-dp.html", "attacks/index.html", "attacks/shadow.html"):
        text = found[name].source
        assert "The clip bound was tuned for none of them." in text, name
        assert text.index("The clip bound") < text.index("<table"), name
    assert "The clip bound" in found["boards/first/index.html"].source
    assert "The clip bound" not in found["boards/second/index.html"].source
    assert "The clip bound" not in found["defenses/secagg.html"].source  # on no board


def test_boards_with_the_same_warning_share_it() -> None:
    alike = [site_board("a", a_run(), WARNING), site_board("b", a_run(), WARNING), site_board("c", a_run(), "Other.")]
    assert warnings([*alike, site_board("d", a_run())]) == [(["a", "b"], WARNING.splitlines()), (["c"], ["Other."])]


def test_the_front_page_has_the_scoreboard_of_the_board(site: Path) -> None:
    board = site_board("first", a_run())
    (scores,) = board.scoreboards
    front, own = (pages(site)[name].source for name in ("index.html", board.page))
    start, end = front.index('<table class="scoreboard">'), front.index("</table>")
    table = front[start:end]
    for column in scores.columns:
        assert f">{column.title}</th>" in table
    for row in scores.rows:
        assert str(escape(scores.sentence(row)[len(row.defense) + 2 :])) in front
        assert not row.unranked or f"not ranked: {escape(row.unranked)}" in table
        for column in scores.columns:
            keys = row.cells[column.name].records
            assert not keys or f'href="{board.page}#{anchor(keys[0])}"' in table
    legend = r'<p class="note legend-line">(.*?)\* this attack'
    assert re.findall(legend, front)[0] == re.findall(legend, own)[0]
    assert [sign in re.findall(legend, front)[0] for sign in SIGNS.values()] == [True] * 3


def test_a_defense_shows_its_claim_its_verdicts_and_its_cost(site: Path) -> None:
    text = pages(site)["defenses/mp-dp.html"].text
    claim = registry.entries("defense")["mp-dp"]["claim"]
    for part in (claim, "Verdicts across boards", "CPU per round", "sent per client and round", "epsilon_per"):
        assert part in text, part
    assert text.count(WORDS[BROKEN]) >= 2 * 2  # two boards
    (page,) = [one for one in plugin_pages("defense", [site_board("first", a_run())]) if one.name == "mp-dp"]
    assert page.count(BROKEN) == sum(one.finding.verdict == BROKEN for one in page.found) > 0


def test_an_attack_shows_where_it_was_worst_and_every_cell(site: Path) -> None:
    page = pages(site)["attacks/shadow.html"]
    mine = [record for record in a_run() if record.cell.attack.name == "shadow"]
    linked = [address for _, address in page.addresses if "#record=" in address]
    assert {unquote(address.partition("#")[2]) for address in linked} == {unquote(anchor(r.key)) for r in mine}
    assert "Where it was the worst attack" in page.text
    assert "It is on no published board yet." in pages(site)["attacks/gifd.html"].text


def test_hostile_records_change_nothing(tmp_path: Path, checkout: Path) -> None:
    given = [site_board(f"b{number}", a_run(text), text, text) for number, text in enumerate(HOSTILE)]
    folder = build_site(given, checkout, tmp_path / "out").parent
    found = pages(folder)
    assert sum(name.startswith("defenses/") for name in found) > len(registry.entries("defense")) + len(HOSTILE)
    for name, page in found.items():
        assert page.source.count("<script") == len(page.all("script")) <= 3, name
        assert all(not key.startswith("on") for _, attributes in page.found for key in attributes), name
    assert dead_links(folder) == []


# --- whole or not there -------------------------------------------------------------------------


def test_a_site_is_replaced_whole_or_not_at_all(tmp_path: Path, checkout: Path) -> None:
    out = tmp_path / "site"
    build_site([site_board("old", a_run())], checkout, out)
    board = site_board("new", a_run())

    def fails(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    broken = replace(board, write_report=fails)
    with pytest.raises(UserError, match=r"cannot be written to .*: No space left on device"):
        build_site([broken], checkout, out)
    assert "old" in (out / "index.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkout", "site"]  # nothing half-made is left
    build_site([board], checkout, out)
    assert not (out / "boards" / "old").exists()


def test_a_folder_that_is_no_site_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "thesis.tex"
    mine.write_text("years of work")
    assert main(["site", "--out", str(tmp_path)]) == 2
    assert "exists and is not a site" in capsys.readouterr().err
    assert main(["site", "--out", str(mine)]) == 2
    assert mine.read_text() == "years of work"


def test_without_boards_or_documents_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no published board below"):
        lb.site(tmp_path / "out", published=tmp_path)
    with pytest.raises(UserError, match="there is no folder docs in"):
        build_site([site_board("first", a_run())], tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_call_builds_a_site_of_published_records(tmp_path: Path) -> None:
    board = tmp_path / "published" / "quick"
    board.mkdir(parents=True)
    note = "A note of this test: these records will be replaced."
    (board / "NOTE.md").write_text(f"{note}\n- more of it\n")
    names = [PUBLISHED_FILE]
    names += [path.name for path in PUBLISHED.joinpath("quick").glob("*--*-membership--server--first--s0--*.json")]
    for name in names:
        shutil.copy(PUBLISHED / "quick" / name, board / name)
    front = lb.site(tmp_path / "out", published=tmp_path / "published")
    assert front == tmp_path / "out" / "index.html"
    assert (tmp_path / "out" / MARKER).is_file()
    assert note in front.read_text()
    assert dead_links(tmp_path / "out") == []
    assert not (board / "report").exists()  # nothing is written among published records
