"""The site in a real browser, opened from disk: links, sorting, keyboard, both themes, a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leakboard.leaderboard.tables.marks import BROKEN, WORDS
from tests.leaderboard.page.test_browser import CHROMIUM, CONTRAST, DESK, PHONE, names, wait_for
from tests.leaderboard.runs import HANG

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    Visit = Callable[..., Page]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
TEXTS = [".lead", ".note", ".mark.held", ".mark.did-not-hold", ".mark.not-shown", ".scoreboard .where", ".sort"]
TEXTS += [".site a", "#theme", ".doors a", ".warning li", ".wrong", "pre code"]


def address(site: Path, page: str = "index.html") -> str:
    return (site / page).as_uri()


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_no_page_scrolls_sideways(viewport: dict[str, int], visit: Visit, site: Path) -> None:
    page = visit(address(site), viewport)
    outside = """width => [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, svg, .skip')
      && e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML.slice(0, 200))"""
    found = sorted(site.rglob("*.html"))
    assert len(found) > 60
    wrong = {}
    for path in found:
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        if page.evaluate("document.documentElement.scrollWidth") > viewport["width"]:
            wrong[path.name] = page.evaluate(outside, viewport["width"])
    assert wrong == {}


def test_on_a_phone_every_mark_of_the_scoreboard_is_in_sight(visit: Visit, site: Path) -> None:
    page = visit(address(site), PHONE)
    marks = page.locator(".scoreboard .behind")
    assert marks.count() > 10
    for box in (mark.bounding_box() for mark in marks.all()):
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]


def test_a_heading_sorts_and_gives_the_order_back(visit: Visit, site: Path) -> None:
    page = visit(address(site))
    table = page.locator("table.scoreboard").first
    before = names(table)
    assert before == ["fedsgd", "mp-dp", "noise"]
    accuracy = table.get_by_role("button", name="accuracy")
    accuracy.click()  # the better ones first
    assert accuracy.locator("xpath=..").get_attribute("aria-sort") == "descending"
    stolen = table.get_by_role("button", name="client: the model")
    stolen.click()  # here less is better
    assert stolen.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    assert names(table) == ["mp-dp", "fedsgd", "noise"]  # who is not ranked stays below
    stolen.click()
    stolen.click()
    assert names(table) == before
    table.get_by_role("button", name="defense").click()
    table.get_by_role("button", name="defense").click()
    assert names(table) == ["mp-dp", "fedsgd", "noise"]
    page.goto(address(site, "defenses/index.html"))
    counts = page.locator("#plugins table")
    counts.get_by_role("button", name=WORDS[BROKEN]).click()
    assert [int(text) for text in names(counts, 2)] == sorted((int(t) for t in names(counts, 2)), reverse=True)
    assert int(names(counts, 2)[0]) > 0


def test_a_mark_opens_its_record_and_a_defense_its_page(visit: Visit, site: Path) -> None:
    page = visit(address(site))
    mark = page.locator("a.behind[href]").first
    attack = mark.locator("xpath=..").locator(".where").inner_text().rstrip("*")
    mark.click()
    opened = page.locator("details.record[open]")
    opened.wait_for()
    assert attack in opened.locator("summary").first.inner_text()
    page.get_by_role("navigation", name="Site").get_by_role("link", name="Defenses").click()
    page.locator("#plugins").get_by_role("link", name="mp-dp", exact=True).click()
    assert page.locator("h1").inner_text() == "mp-dp"
    page.locator("#verdicts tbody a").first.click()
    assert page.locator("h1").inner_text() in ("inverting-gradients", "gradient-membership", "shadow", "phi-inversion")


@pytest.mark.parametrize("name", ["docs/suites-reference.html", "attacks/shadow.html"])
def test_what_is_wider_than_the_screen_says_so(name: str, visit: Visit, site: Path) -> None:
    page = visit(address(site, name), PHONE)
    wait_for(page, "document.querySelector('.scroll.has-more') !== null")
    frames = """() => [...document.querySelectorAll('.scroll')].filter(e => e.checkVisibility()).map(
      e => [e.scrollWidth > e.clientWidth + 1, !e.previousElementSibling.hidden])"""
    assert all(wide == told for wide, told in page.evaluate(frames))


def test_search_leaves_what_fits(visit: Visit, site: Path) -> None:
    page = visit(address(site, "attacks/index.html"))
    rows = page.locator("#plugins tbody tr:not([hidden])")
    everything = rows.count()
    page.get_by_label("Search").fill("shadow models")
    assert 0 < rows.count() < everything
    page.get_by_label("Search").press("Escape")
    assert rows.count() == everything


def test_everything_can_be_done_with_the_keyboard(visit: Visit, site: Path) -> None:
    page = visit(address(site))
    seen = []
    for _ in range(13):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", seen
    assert seen[:6] == ["Skip to the content", "LeakBoard", "Boards", "Defenses", "Attacks", "Submit"]
    assert {"filter", "Test my defense"} <= set(seen)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.locator("table.scoreboard").first.get_by_role("button", name="accuracy").focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort]").count() == 1
    page.goto(address(site))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_for(page, "document.activeElement.id === 'content'")
    page.goto(address(site, "docs/suites-reference.html"))  # wide tables can be scrolled without a mouse
    assert page.locator(".document .scroll:not([tabindex='0'])").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible_and_the_choice_is_kept(scheme: str, visit: Visit, site: Path) -> None:
    page = visit(address(site), scheme=scheme)

    def look() -> str:
        levels = page.evaluate("getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)")
        return "dark" if sum(levels) < 300 else "light"

    assert look() == scheme
    assert [(text, ratio) for text, ratio in page.evaluate(CONTRAST, TEXTS) if ratio < 4.5] == []
    other = {"light": "dark", "dark": "light"}[scheme]
    while page.locator("#theme").inner_text() != f"Theme: {other}":
        page.locator("#theme").click()
    assert look() == other
    page.get_by_role("navigation", name="Site").get_by_role("link", name="Docs").click()
    page.locator(".document").wait_for()
    assert look() == other
    page.goto(address(site, "boards/first/index.html"))
    assert look() == other
    assert [(t, r) for t, r in page.evaluate(CONTRAST, [".site a", ".warning p", ".lead"]) if r < 4.5] == []


def test_every_picture_of_a_document_is_there(visit: Visit, site: Path) -> None:
    page = visit(address(site))
    seen = 0
    for path in sorted((site / "docs").glob("*.html")):
        page.goto(path.as_uri())
        wait_for(page, "[...document.images].every(e => e.complete)")
        assert page.evaluate("[...document.images].filter(e => e.naturalWidth === 0).map(e => e.src)") == [], path.name
        seen += page.locator(".document img").count()
    assert seen > 0


def test_without_scripts_it_can_still_be_read(browser: Browser, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(1000 * HANG)
    page.goto(address(site))
    assert page.locator("table.scoreboard").first.is_visible()
    assert not page.locator(".filter").is_visible()  # what would do nothing is not there
    page.locator("a.behind[href]").first.click()
    assert page.locator("details.record").first.is_visible()
    context.close()
