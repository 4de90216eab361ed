"""The page in a real browser: Debian's Chromium, headless, opening the folder from disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from leakboard.leaderboard.page.page import anchor, write_page
from leakboard.leaderboard.ranking.scoreboard import scoreboards
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.marks import BROKEN, WORDS
from leakboard.leaderboard.tables.phase_times import phase_tables
from tests.leaderboard.page.test_charts import a_run, boards
from tests.leaderboard.page.test_page import HOSTILE, record
from tests.leaderboard.runs import HANG, few_charts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
CHARTS = 3  # drawn for a page here: they take long, and other tests look at all of them
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
HARM = [
    *HOSTILE,
    "<img src=x onerror=window.harmed=1>",
    "<svg onload=window.harmed=1>",
    '"><script src="http://example.invalid/x.js"></script><img src="http://example.invalid/x.png">',
    "<style>*{display:none}</style>",
    "x" * 300,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests here; closed with them, since it keeps an event loop running."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: requirements-dev.txt has it")
    with api.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, timeout=1000 * HANG)
        yield started
        started.close()


def written(folder: Path, records: list[Record], title: str) -> str:
    """The address of the page of these records, with pictures where there is a reconstruction."""

    def images(given: Record) -> torch.Tensor | None:
        shown = given.cell.goal == "reconstruction" and given.status == "ok"
        return torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) if shown else None

    with few_charts(CHARTS):
        path = write_page(
            folder,
            title=title,
            description=title,
            boards=boards(records),
            scoreboards=scoreboards(boards(records), records),
            tables=[*phase_tables(records), *cell_tables(records)],
            records=records,
            originals=images,
            reconstructions=images,
            claims={"mp-dp": "The server learns nothing.", title: title},
        )
    return path.as_uri()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    failed = record("failed", status="failed", reason="The gradient was empty.", scores={}, cost=None)
    return written(tmp_path_factory.mktemp("calm"), [*a_run(), record("full"), failed], "Quick")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every harmful text in every place of a record that takes one, and as the name of a ranked defense."""
    given = [record(f"{number}{text}", text) for number, text in enumerate(HARM)]
    return written(tmp_path_factory.mktemp("hostile"), [*a_run(HARM[-3]), *given], HARM[-3])


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a context of its own; in the end nothing was asked of the network and nothing went wrong."""
    asked: list[str] = []
    wrong: list[str] = []
    contexts = []

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a page that is left while its pictures load is no failure
            wrong.append(f"failed: {request.url} {request.failure}")

    def opened(address: str, viewport: dict[str, int] = DESK, scheme: str = "light") -> Page:
        looks = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
        context = browser.new_context(**looks)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * HANG)
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", failed)
        page.on("console", lambda message: wrong.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert wrong == []


def names(table: Locator, column: int = 1) -> list[str]:
    """What stands in a column of a table's visible rows."""
    cells = table.locator(f"tbody:not(.section) tr:not([hidden]) > :nth-child({column}) .value")
    return cells.all_inner_texts()


def wait_for(page: Page, script: str, argument: Any = None) -> None:
    page.wait_for_function(script, arg=argument)


def test_a_heading_sorts_its_table_and_gives_the_ranking_back(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    table = page.locator("#ranking-1 table")
    ranking = names(table, 2)
    assert len(ranking) == 3
    accuracy = table.get_by_role("button", name="accuracy")
    before = [float(text) for text in names(table, 3)]
    accuracy.click()
    assert accuracy.locator("xpath=..").get_attribute("aria-sort") == "descending"  # the better ones first
    assert names(table, 2)[-1] == "noise"  # below the line it stays
    table.get_by_role("button", name="defense").click()
    assert names(table, 2) == [*sorted(ranking[:-1]), "noise"]
    table.get_by_role("button", name="defense").click()
    assert names(table, 2) == [*sorted(ranking[:-1], reverse=True), "noise"]
    table.get_by_role("button", name="defense").click()
    assert names(table, 2) == ranking
    assert [float(text) for text in names(table, 3)] == before


def test_search_and_filters_leave_what_fits(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    records = page.locator("details.record:not([hidden])")
    everything = records.count()
    page.get_by_label("Search").fill("fedsgd prior")
    assert 0 < records.count() < everything
    assert all("fedsgd" in text and "prior" in text for text in records.locator("summary").all_inner_texts())
    assert page.locator(".card:visible").count() == 1
    assert " of " in page.locator("#matches").inner_text()
    page.get_by_label("Search").press("Escape")
    assert records.count() == everything
    page.locator("select[data-facet=goal]").select_option("membership")
    assert {text.split("·")[1].strip() for text in records.locator("summary").all_inner_texts()} == {"shadow"}
    titles = page.locator(".board:visible h2").all_inner_texts()
    assert [title for title in titles if not title.startswith("CPU")] == [
        "Membership, digits, threat client",
        "All cells: membership",
    ]  # a table without rows goes as well
    page.locator("select[data-facet=goal]").select_option("")
    assert records.count() == everything


def test_a_cell_opens_its_record_with_all_that_is_in_it(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    page.get_by_label("Search").fill("learns nothing")  # which no record's first line says
    assert page.locator("details.record:visible").count() == 0
    link = page.locator(".card a:visible").first  # a record that is hidden comes back when a link leads to it
    target = str(link.get_attribute("href"))
    link.click()
    opened = page.locator("details.record[open]")
    opened.wait_for()
    assert opened.count() == 1
    assert f"#{opened.get_attribute('id')}" == target
    assert opened.locator("summary").first.is_visible()
    wait_for(page, "id => document.activeElement.closest('details')?.id === id", target[1:])
    full = page.locator(f"[id='{anchor('full')}']")
    full.locator("summary").first.click()
    text = full.inner_text()
    for part in ("epsilon", "Provenance", "mp-dp", "originals", "reconstructions", "peak memory mib"):
        assert part in text, part
    assert full.locator(".flags li").all_inner_texts() == ["mp-dp"]
    pictures = full.locator("img.strip")
    assert pictures.count() == 2
    wait_for(page, "e => e.complete && e.naturalWidth > 0", pictures.nth(1).element_handle())


def test_a_membership_record_shows_its_roc(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    member = page.locator("details.record[data-goal=membership]").first
    member.locator("summary").first.click()
    box = member.locator("svg polyline").bounding_box()
    assert box is not None
    assert box["width"] > 100
    assert page.locator("details.record[data-goal=extraction] svg").count() == 0


def test_cards_lead_to_the_records(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    card = page.locator(".card", has=page.get_by_role("heading", name="mp-dp", exact=False)).first
    assert "The server learns nothing." in card.inner_text()
    card.locator("a").first.click()
    page.locator("details.record[open]").wait_for()
    assert page.locator("details.record[open]").count() == 1


def test_the_scoreboard_comes_first_with_one_sentence_per_defense(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    assert page.locator("main > section").first.get_attribute("id") == "scoreboard"
    first = page.locator(".scores").first  # another record is of another data set
    defenses = first.locator("tbody th a").all_inner_texts()
    assert defenses == ["fedsgd", "mp-dp", "noise"]
    sentences = first.locator(".sentences li").all_inner_texts()
    assert [text.split(":")[0] for text in sentences] == defenses
    assert f"{WORDS[BROKEN]}: server: images recovered" in sentences[1]
    assert "not ranked: below the utility gate" in first.locator("tr.unranked").inner_text()
    box = first.locator("table").bounding_box()
    assert box is not None
    assert box["y"] < DESK["height"] / 2  # on the first screen


def test_a_mark_leads_to_the_attack_its_pictures_and_its_record(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    mark = page.locator(".scoreboard tbody tr", has_text="mp-dp").locator("a.behind").first
    mark.focus()
    page.keyboard.press("Enter")
    wait_for(page, "href => '#' + document.activeElement.id === href", mark.get_attribute("href"))
    found = page.locator(".findings tr:focus")
    assert "phi-inversion" in found.inner_text()
    assert WORDS[BROKEN] in found.inner_text()
    picture = found.locator("img.strip").last
    wait_for(page, "e => e.complete && e.naturalWidth > 0 && e.checkVisibility()", picture.element_handle())
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "behind"  # and the way back
    page.keyboard.press("Enter")
    found.locator("a").first.click()
    page.locator("details.record[open]").wait_for()


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_every_mark_can_be_seen_without_scrolling_sideways(
    viewport: dict[str, int], visit: Callable[..., Page], calm: str
) -> None:
    page = visit(calm, viewport)
    boxes = [mark.bounding_box() for mark in page.locator(".scoreboard .behind").all()]
    assert len(boxes) == 12  # three defenses, four questions
    assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= viewport["width"] for box in boxes)
    if viewport == PHONE:  # a row is a card, and each line of it has its question
        label = "getComputedStyle(document.querySelector('.scoreboard td:nth-of-type(2)'), '::before').content"
        assert page.evaluate(label) == '"server: images recovered"'


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_what_is_wider_than_the_screen_says_so(viewport: dict[str, int], visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm, viewport)
    wait_for(page, "document.querySelector('.more-beside:not([hidden])') !== null")
    hints = """() => [...document.querySelectorAll('.scroll')].filter(e => e.checkVisibility()).map(
      e => [e.scrollWidth > e.clientWidth + 1, !e.previousElementSibling.hidden])"""
    found = page.evaluate(hints)
    assert all(wide == told for wide, told in found)
    assert any(wide for wide, _ in found)
    wide = page.locator(".scroll.has-more").first.element_handle()
    wide.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    wait_for(page, "e => !e.classList.contains('has-more')", wide)


def test_every_figure_has_a_sentence_and_no_column_is_empty(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    for figure in page.locator(".chart, .picture-table").all():
        assert len(figure.locator(".note").inner_text().split()) > 5
    empty = """() => [...document.querySelectorAll('table.leaderboard')].flatMap(table => {
      const rows = [...table.querySelectorAll('tbody:not(.section) tr')];
      return [...table.querySelectorAll('thead th')].slice(1).filter(
        (head, i) => rows.length && rows.every(row => row.cells[i + 1].classList.contains('missing'))
      ).map(head => table.caption.textContent + head.textContent); })"""
    assert page.evaluate(empty) == []
    assert "LPIPS" not in page.locator("#ranking-1 thead").inner_text()
    assert "Left out, because nobody has a value: LPIPS (no weights)" in page.locator("#ranking-1 tfoot").inner_text()


def test_everything_can_be_done_with_the_keyboard(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    page.keyboard.press("Tab")
    seen = []
    for _ in range(15):
        seen.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen  # the focus can be seen
        page.keyboard.press("Tab")
    assert seen[:3] == ["Scoreboard", "Tables", "Figures"]
    assert "filter" in seen
    assert any(text.startswith("Theme") for text in seen)
    page.locator("#ranking-1").get_by_role("button", name="defense").focus()
    page.keyboard.press("Enter")
    assert page.locator("#ranking-1 th[aria-sort]").count() == 1
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    link = page.locator("#ranking-1 tbody a").first
    link.focus()
    page.keyboard.press("Enter")
    opened = page.locator("details.record[open]")
    opened.wait_for()
    wait_for(page, "document.activeElement.closest('details.record') !== null")
    page.keyboard.press("Escape")
    assert opened.count() == 0
    assert page.evaluate("document.activeElement.getAttribute('href')") == link.get_attribute("href")
    page.locator("details.record summary").first.focus()
    page.keyboard.press("Enter")
    assert opened.count() == 1


CONTRAST = """selectors => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = parse(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
  };
  return selectors.map(selector => {
    const element = document.querySelector(selector);
    const [one, two] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    return [selector, (one + 0.05) / (two + 0.05)];
  });
}"""
TEXTS = [".lead", ".how", ".note", "#ranking-1 td .value", ".interval", ".muted td", ".best .value", ".verdict.held"]
TEXTS += [
    ".scoreboard .value",
    ".scoreboard .where",
    ".mark.did-not-hold",
    ".mark.held",
    ".unranked .value",
    ".legend-line",
]
TEXTS += [".verdict.did-not-hold", ".badge.ok", ".badge.failed", ".bar nav a", ".facts dt", "#theme", ".where", ".sort"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible_and_can_be_chosen(scheme: str, visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm, scheme=scheme)

    def look() -> str:
        levels = page.evaluate("getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)")
        return "dark" if sum(levels) < 300 else "light"

    def shown() -> str:
        day = page.locator(".chart .by-day").first.is_visible()
        assert day != page.locator(".chart .by-night").first.is_visible()
        return "light" if day else "dark"

    assert (look(), shown()) == (scheme, scheme)
    assert [(text, ratio) for text, ratio in page.evaluate(CONTRAST, TEXTS) if ratio < 4.5] == []
    button = page.locator("#theme")
    assert button.inner_text() == "Theme: auto"
    for theme in ("light", "dark"):
        button.click()
        assert button.inner_text() == f"Theme: {theme}"
        assert (look(), shown()) == (theme, theme)
    page.reload()
    assert (look(), shown()) == ("dark", "dark")  # the choice is kept


def test_every_picture_of_the_page_is_there(visit: Callable[..., Page], calm: str) -> None:
    page = visit(calm)
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.evaluate("document.querySelectorAll('img').forEach(e => { e.loading = 'eager'; })")
    wait_for(page, "[...document.images].every(e => e.complete)")
    assert page.evaluate("[...document.images].filter(e => e.naturalWidth === 0).map(e => e.src)") == []
    assert page.evaluate("document.images.length") > 2 * CHARTS + 10


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("kind", ["calm", "hostile"])
def test_only_frames_scroll_sideways(
    kind: str, viewport: dict[str, int], visit: Callable[..., Page], request: pytest.FixtureRequest
) -> None:
    page = visit(request.getfixturevalue(kind), viewport)
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    outside = """width => [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, svg')
      && e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML.slice(0, 200))"""
    assert page.evaluate(outside, viewport["width"]) == []


def test_a_hostile_record_runs_nothing_and_breaks_nothing(visit: Callable[..., Page], hostile: str) -> None:
    page = visit(hostile)
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.locator("footer").scroll_into_view_if_needed()
    assert page.evaluate("window.harmed") is None
    assert page.locator("script").count() == 3
    assert page.locator("footer").is_visible()
    assert page.locator("details.record").count() == len(a_run()) + len(HARM)
    assert page.locator("main > section").count() == page.locator("section[id]:not(.board)").count()
    for number, text in enumerate(HARM):
        found = page.locator(f"[id='{anchor(f'{number}{text}')}']")
        assert found.count() == 1
        if text.isprintable():
            assert text.strip() in " ".join(found.locator(".words").inner_text().split())
    page.locator("#ranking-1").get_by_role("button", name="defense").click()
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = false; })")
    for link in page.locator("#ranking-1 tbody a").all():
        link.click()
        page.locator(f"[id='{str(link.get_attribute('href'))[1:]}'][open]").wait_for(state="attached")
    assert page.evaluate("window.harmed") is None


def test_without_scripts_it_can_still_be_read(browser: Browser, calm: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(1000 * HANG)
    page.goto(calm)
    assert page.locator("#ranking-1 table").is_visible()
    assert not page.locator(".filter").is_visible()  # what would do nothing is not there
    page.locator("details.record summary").first.click()
    assert page.locator("details.record[open] h3").first.is_visible()
    context.close()
