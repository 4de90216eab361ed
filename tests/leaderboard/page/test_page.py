"""The page, read as a browser would: nothing from outside, no dead link, nothing hostile that runs, nothing hidden."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from torch import Tensor

from leakboard.leaderboard.page.page import Entry, anchor, write_page
from leakboard.leaderboard.records.record import (
    CellSpec,
    Cost,
    PluginSpec,
    Provenance,
    Record,
    ScoreRecord,
    TrainingSpec,
    TrainingSummary,
)
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

VOID = {"meta", "link", "img", "input", "br"}
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onclick='alert(1)",
    "javascript:alert(1)",
    "</details></section><!--",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[31m\x00\u202egnp.exe\u2028",
]


class Page(HTMLParser):
    """The elements of a page with their text; fails where one is not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " * (tag not in ("b", "span"))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, name: str = "") -> list[dict[str, str]]:
        """The attributes of all elements of a tag, or of those that have a class."""
        return [a for found, a in self.found if found == tag and (not name or name in a.get("class", "").split())]


def record(key: str, text: str = "", **given: Any) -> Record:
    """A record that has the text in every place that takes one."""
    label = text or "mp-dp"
    spec = PluginSpec(label=label, name=label, parameters={label: label, "epsilon": 8.0})
    seconds = {f"client/{label}": 1.5}
    summary = TrainingSummary(
        **{
            "key": label,
            "accuracy": 0.913,
            "test_records": 360,
            "train_accuracy": None,
            "train_records": 9,
            "rounds": 150,
        },
        **{"client_rounds": 750, "parameters": 4521, "diverged": False, "observed": {"first": 0, "last": 149}},
        **{"bytes_by_kind": {label: 12_345_678}, "claims": {label: 8}, "seconds": seconds, "cpu_seconds": seconds},
        wall_seconds=24.125,
    )
    training = TrainingSpec(dataset=spec, model=spec, defense=spec, training={label: label}, observe={}, seed=3)
    made = {"commit": label, "platform": label, "processor": label, "device": label, "data_digest": label}
    fields: dict[str, Any] = {
        "scores": {
            "psnr": ScoreRecord(value=18.25, unit="dB", per_item=[17.5, 19.0], details={label: 1.0}),
            "identified": ScoreRecord(value=0.5, per_item=[0.0, 1.0]),
            f"lpips{label}": ScoreRecord(value=None, reason=f"no weights {label}"),
        },
        **{"status": "ok", "reason": text, "traceback": text, "flags": [label], "diagnostics": {label: 0.5}},
        **{"budget": {label: label}, "cost": Cost(wall_seconds=12.5, cpu_seconds=11.0, peak_memory_mib=412.5)},
        "provenance": Provenance(created=label, dirty=True, versions={label: label}, **made),
    }
    about = {name: given.pop(name, usual) for name, usual in (("goal", "reconstruction"), ("moment", "first"))}
    cell = CellSpec(training=training, attack=spec, threat=text or "server", **about)
    return Record(**{"key": key, "ingredients": {}, "cell": cell, "training": summary, **fields, **given})


def table(*links: str, text: str = "Defense") -> Table:
    rows = tuple(Row({"k": Cell(text, note=text), "n": Cell(0.5, 0.4, 0.6, link=link)}, text) for link in links)
    return Table(text, (Column("k", text, help=text), Column("n", "N")), rows, (text,), text)


def images(_: Record) -> Tensor:
    return torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def write(folder: Path, records: list[Record], *tables: Table, text: str = "Quick", **given: Any) -> Page:
    pictures: dict[str, Any] = {"originals": images, "reconstructions": lambda r: 1 - images(r), **given}
    path = write_page(folder, title=text, description=text, tables=tables, records=records, **pictures)
    assert path == folder / "index.html"
    return Page(path)


def check(page: Page, folder: Path) -> None:
    """What holds for every page, whatever it was made from."""
    ids = [a["id"] for _, a in page.found if "id" in a]
    assert len(ids) == len(set(ids))
    assert not any(re.search(r"\s", name) for name in ids)
    for tag, attributes in page.found:
        assert not {"style", "srcset", "action", "srcdoc"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        for name in {"src", "href"} & set(attributes):
            address = attributes[name]
            assert address.startswith("#") or re.fullmatch(r"(assets|images|figures)/[\w.-]+", address), (tag, address)
            assert address[1:] in ids if address.startswith("#") else (folder / address).is_file()
    assert [a["src"] for a in page.all("script")] == ["assets/theme.js", "assets/frames.js", "assets/page.js"]
    assert not {"iframe", "object", "embed", "base", "form", "style"} & {tag for tag, _ in page.found}
    assert page.all("img", "strip") == [a for a in page.all("img") if a["src"].startswith("images/")]
    assert all(a["alt"].startswith(("Originals: ", "Reconstructions: ")) for a in page.all("img", "strip"))
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_a_page_is_whole_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    page = write(tmp_path, [record("a"), record("b", moment="last")], table("a", "b"))
    check(page, tmp_path)
    assert "http:" not in page.source
    assert "https:" not in page.source
    for path in (tmp_path / "assets").iterdir():
        assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", path.read_text())
        assert "http" not in path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "assets", "images", "figures"}
    assert page.source.index("Quick") < page.source.index("<table") < page.source.index("strip")


def test_every_link_of_a_table_leads_to_a_record_that_is_there(tmp_path: Path) -> None:
    page = write(tmp_path, [record("a/1 x"), record("b")], table("a/1 x", "b", "gone", "javascript:alert(1)"))
    check(page, tmp_path)
    links = [a["href"] for a in page.all("a") if "data-record" in a]
    assert [unquote(link) for link in links] == ["#record=a/1 x", "#record=b"]
    assert [a["id"] for a in page.all("details", "record")] == [anchor("a/1 x"), anchor("b")]
    with pytest.raises(ValueError, match="more than once: b"):
        write(tmp_path, [record("b"), record("b")])


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_runs_or_breaks_the_page(text: str, tmp_path: Path) -> None:
    calm = write(tmp_path / "calm", [record("k"), record("f", status="failed", reason="r", traceback="t")], table("k"))
    records = [record(text, text), record("f", text, status="failed")]
    page = write(tmp_path / "harm", records, table(text, text=text), text=text)
    check(page, tmp_path / "harm")
    assert {tag for tag, _ in page.found} <= {tag for tag, _ in calm.found} | {"h4", "sup", "pre"}
    assert all(char.isprintable() or char == "\n" for char in page.source)
    if text.isprintable():
        assert page.text.count(text) > 20  # shown as what it is


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed", "skipped"])
@pytest.mark.parametrize("goal", ["reconstruction", "membership"])
def test_a_cell_without_a_result_is_shown_with_its_reason(status: str, goal: str, tmp_path: Path) -> None:
    failed = record(
        "f", status=status, goal=goal, reason="The gradient was <empty>.", scores={}, cost=None, moment="last"
    )
    page = write(tmp_path, [record("a"), failed], reconstructions=lambda r: None)
    check(page, tmp_path)
    listed = page.source[page.source.index('id="without-result"') :].split("</table>")[0]
    assert "The gradient was &lt;empty&gt;." in listed
    assert f'<span class="badge {status}">{status}</span>' in listed
    # in the list and in its record; a reconstruction also in the place of its picture
    assert page.text.count("The gradient was <empty>.") == (3 if goal == "reconstruction" else 2)
    assert not page.all("img", "strip")


def test_a_record_shows_all_that_it_holds(tmp_path: Path) -> None:
    page = write(tmp_path, [record("a", reason="fine", traceback="line 1\nline 2")])
    shown = " ".join(page.text.split())
    for part in (
        *["epsilon 8", "psnr 18.25 dB 1", "17.5 19", "no weights mp-dp", "observed round first round (0)", "seed 3"],
        *["client/mp-dp 1.5 1.5", "mp-dp 12.3 MB 12345678", "wall seconds 24.12", "peak memory mib 412.5", "fine"],
        *["accuracy 0.913", "train accuracy –", "diverged no", "dirty yes", "test records 360", "keys seeded"],
    ):
        assert part in shown, part
    assert "line 1\nline 2" in page.text


def test_pictures_stand_in_pairs_with_their_scores(tmp_path: Path) -> None:
    page = write(tmp_path, [record("a"), record("b", moment="last"), record("m", goal="membership")])
    assert len(page.all("figure")) == 2
    gallery = page.source.split('id="pictures"')[1].split('id="records"')[0]
    assert re.findall(r'alt="(\w+): 2 images of mp-dp', gallery) == ["Originals", "Reconstructions"] * 2
    assert re.findall(r"<li>([\d.]+)", gallery) == ["17.5", "19.0"] * 2
    assert re.findall(r'aria-label="(identified|not identified)"', gallery) == ["not identified", "identified"] * 2
    assert len(list((tmp_path / "images").iterdir())) == 2  # the same originals, the same reconstructions


def test_the_picture_table_stands_in_the_pictures_in_a_frame_that_scrolls(tmp_path: Path) -> None:
    page = write(tmp_path, [record("a"), record("b", moment="last")])
    check(page, tmp_path)
    section = page.source.split('id="pictures"')[1].split('id="records"')[0]
    drawn = [image for image in page.all("img") if image["src"].startswith("figures/pictures-")]
    assert [image["src"] for image in drawn] == [f"figures/pictures-mp-dp-server-{m}.png" for m in ("first", "last")]
    for image in drawn:
        assert (tmp_path / image["src"]).read_bytes().startswith(b"\x89PNG")
        assert "originals beside the reconstructions of mp-dp" in image["alt"]
        assert section.count(image["src"]) == 1
    assert len(page.all("section", "picture-table")) == section.count('<div class="scroll"') == 2
    write(tmp_path, [record("m", goal="membership")])
    assert "picture-table" not in (tmp_path / "index.html").read_text()
    assert not list((tmp_path / "figures").glob("pictures-*"))


def test_one_picture_stands_for_all_seeds_and_the_rest_is_in_the_records(tmp_path: Path) -> None:
    def many(given: Record) -> Tensor | None:
        return torch.rand(11, 3, 8, 8) if given.key == "b" else None

    page = write(tmp_path, [record("a"), record("b")], originals=many, reconstructions=many)
    check(page, tmp_path)
    assert len(page.all("figure")) == 1
    assert "(of 2 seeds)" in page.text
    assert "The first 8 images; the others are in the record." in page.text
    assert len(page.all("img", "strip")) == 2 + 4


def test_a_second_page_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    write(tmp_path, [record("a")])
    first = {path.name for path in (tmp_path / "images").iterdir()}
    check(write(tmp_path, [record("a")], originals=lambda r: torch.zeros(1, 1, 8, 8)), tmp_path)
    second = {path.name for path in (tmp_path / "images").iterdir()}
    assert len(second) == 2
    assert len(first & second) == 1


def test_an_empty_page_says_so(tmp_path: Path) -> None:
    page = write(tmp_path, [])
    check(page, tmp_path)
    for part in ("There is no table yet", "no reconstruction to show", "There is no record yet"):
        assert part in page.text


def test_a_cell_without_a_moment_is_about_the_whole_run() -> None:
    assert Entry(record("a", moment="last"), "x").place == "last round (149), batch size 1"
    assert Entry(record("a", training=None), "x").place == "first round, batch size 1"
    assert Entry(record("a", goal="membership", moment=None), "x").place == "whole run"
