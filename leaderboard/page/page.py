"""The page: a folder of static files that opens from disk and loads nothing from the network.

The content of records and tables counts as hostile: templates escape all of it, links only lead to places on the same
page, and a content security policy allows nothing to run or load except the files in the folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from leakboard.core.files import write_bytes, write_text
from leakboard.core.seeds import natural_order
from leakboard.core.terminal import plain
from leakboard.leaderboard.page.cards import cards
from leakboard.leaderboard.page.charts.collect import charts, remove_other_charts, save_charts
from leakboard.leaderboard.page.picture_table import Images, remove_other_figures, save_picture_tables
from leakboard.leaderboard.page.pictures import Strip, remove_other_images, save_strips
from leakboard.leaderboard.page.roc import Curve, record_curve
from leakboard.leaderboard.ranking.leaderboards import Board, Place, pool_words
from leakboard.leaderboard.ranking.scoreboard import Scoreboard, ScoreColumn, ScoreRow, times
from leakboard.leaderboard.records.known import goals, known_goal
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.formats import to_html
from leakboard.leaderboard.tables.marks import SIGNS, WORDS
from leakboard.leaderboard.tables.table import NOTHING, Table

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Entry:
    """A record on the page. `repeats` counts the records that differ only in the seed."""

    record: Record
    anchor: str
    strips: list[Strip] = field(default_factory=list)
    repeats: int = 1

    @property
    def place(self) -> str:
        """The observed round in words; for a reconstruction with the batch size."""
        cell, training = self.record.cell, self.record.training
        size = f", batch size {cell.batch_size}" if known_goal(cell.goal).per_batch_size else ""
        if cell.moment is None:
            return "whole run" + size
        index = training.observed.get(cell.moment) if training else None
        return f"{cell.moment} round" + ("" if index is None else f" ({index})") + size

    @property
    def words(self) -> list[str]:
        """What distinguishes this cell from others, the most important part first."""
        cell, training = self.record.cell, self.record.cell.training
        place = f"batch of the {self.place}" if cell.about == "batch" else self.place
        if cell.pool_share < 1:
            place += f", {pool_words(cell.pool_share)}"
        return [training.defense.label, cell.attack.label, cell.threat, place, training.dataset.label]

    def captions(self, part: Strip) -> list[tuple[float | None, bool | None]]:
        """For each image of a strip, its PSNR and whether it was identified; None if unknown."""

        def item(metric: str, index: int) -> float | None:
            values = self.record.scores[metric].per_item if metric in self.record.scores else []
            return values[index] if index < len(values) else None

        items = [(item("psnr", i), item("identified", i)) for i in range(part.first, part.first + part.images)]
        return [(psnr, None if hit is None else hit > 0) for psnr, hit in items]

    @property
    def roc(self) -> Curve | None:
        """The ROC of a membership attack or an audit as a drawing."""
        return record_curve(self.record)

    @property
    def headlines(self) -> list[str]:
        """The record's main scores, each with its name and unit."""
        names = known_goal(self.record.cell.goal).headlines or tuple(self.record.scores)
        scores = [(name, self.record.scores[name]) for name in names if name in self.record.scores]
        told = [f"{name} {shown(s.value)} {s.unit}".rstrip() for name, s in scores if s.value is not None]
        return [*told, f"over {self.over}"] if told and self.over else told

    @property
    def over(self) -> str:
        """The targets behind the record's scores."""
        return all_targets(self.record)


def write_page(
    folder: Path,
    *,
    title: str,
    description: str,
    warning: str = "",
    boards: Sequence[Board] = (),
    scoreboards: Sequence[Scoreboard] = (),
    tables: Sequence[Table],
    records: Sequence[Record],
    originals: Images,
    reconstructions: Images,
    claims: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write `index.html` with its assets and images into a folder and return its path.

    `warning` is about all records and comes first, then the `scoreboards`. `boards` are the rankings, from which cards
    and charts are made too; `tables` are all other tables; `claims` are the sentences in which defenses say what they
    promise, by plugin name. `originals` and `reconstructions` return a record's images (N, C, H, W) in image units, or
    None; row i of one belongs to row i of the other. The index is written last, and images of an earlier page are
    removed after that. So a reader always sees either the old page or the new one.
    """
    keys = Counter(record.key for record in records)
    if repeated := [key for key, times in keys.items() if times > 1]:
        raise ValueError(f"Records must have different keys; given more than once: {', '.join(repeated)}.")
    entries = [Entry(r, anchor(r.key), _strips(folder, r, originals, reconstructions)) for r in records]
    figures = save_picture_tables(folder, records, originals, reconstructions)
    drawn = save_charts(folder, charts(boards, records))
    known = set(keys)
    for asset in sorted(path for path in ASSETS.iterdir() if path.suffix in (".css", ".js", ".svg")):
        write_bytes(folder / "assets" / asset.name, asset.read_bytes())
    page = environment().get_template("index.html.jinja")

    def shown_tables(given: Iterable[Table]) -> list[tuple[Table, Markup]]:
        linked = [_with_live_links(table.without_empty(), known) for table in given]
        return [(table, Markup(to_html(table))) for table in linked]  # to_html escapes all text

    text = page.render(
        title=title,
        description=description,
        warning=warning.splitlines(),
        scoreboards=scoreboards,
        links=ScoreLinks(),
        shots={entry.record.key: entry for entry in entries},
        rankings=[(b.place, *shown) for b, shown in zip(boards, shown_tables(b.table for b in boards), strict=True)],
        cards=cards(boards, records, claims),
        known=known,
        facets=_facets(records),
        tables=[(None, *shown) for shown in shown_tables(tables)],
        charts=drawn,
        entries=entries,
        figures=figures,
        gallery=_gallery(entries),
        counts=Counter(record.status for record in records),
    )
    write_text(folder / "index.html", text)
    remove_other_images(folder, [part for entry in entries for part in entry.strips])
    remove_other_figures(folder, figures)
    remove_other_charts(folder, drawn)
    return folder / "index.html"


def anchor(key: str) -> str:
    """The id of a record on the page, which links from tables have after the `#`.

    >>> anchor("a b")
    'record=a%20b'
    """
    return f"record={quote(key, safe='')}"


def defense_anchor(dataset: str, defense: str) -> str:
    """The id of a defense's card.

    >>> defense_anchor("digits", "mp-dp (V2)")
    'defense=digits/mp-dp%20%28V2%29'
    """
    return f"defense={quote(dataset, safe='')}/{quote(defense, safe='')}"


def finding_anchor(dataset: str, defense: str, place: Place) -> str:
    """The id of what was found about a defense in one table; marks of the scoreboard lead there."""
    parts = (place.goal, place.about, place.threat, place.batch_size, f"{place.share:g}")
    return "/".join([defense_anchor(dataset, defense), *(quote(str(part), safe="") for part in parts)])


class ScoreLinks:
    """Where a scoreboard leads on the page of a run: a defense to its card, a mark to what was found."""

    def defense(self, board: Scoreboard, row: ScoreRow) -> str:
        """The address behind the name of a defense."""
        return f"#{defense_anchor(board.dataset, row.defense)}"

    def mark(self, board: Scoreboard, row: ScoreRow, column: ScoreColumn) -> str:
        """The address behind a mark; empty where there is none."""
        return f"#{finding_anchor(board.dataset, row.defense, row.cells[column.name].finding.place)}"


def shown(value: Any) -> Any:
    """A value as the templates print it: numbers with four digits, truth values as words, no control characters.

    >>> [shown(value) for value in (0.123456, 1234567.8, 1e-9, None, True, [1, "a"])]
    ['0.1235', '1234568', '1e-09', '–', 'yes', '[1, "a"]']
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, (dict, list, tuple)):
        value = json.dumps(value, ensure_ascii=False)
    return NOTHING if value is None else "\n".join(map(plain, str(value).split("\n")))


def size(number: int) -> str:
    """A number of bytes in a suitable unit.

    >>> size(999), size(12_345_678)
    ('999 B', '12.3 MB')
    """
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if number >= 1000**power:
            return f"{number / 1000**power:.1f} {unit}"
    return f"{number} B"


def environment(*more: Path) -> Environment:
    """The templates of the page and of more folders, with what they call."""
    made = Environment(
        loader=FileSystemLoader([ASSETS, *more]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["size"] = size
    made.globals |= {"anchor": anchor, "defense_anchor": defense_anchor, "finding_anchor": finding_anchor}
    made.globals |= {"signs": SIGNS, "words": WORDS, "times": times}
    return made


def _with_live_links(table: Table, keys: set[str]) -> Table:
    """The table without links to records that are not on the page."""
    rows = [
        replace(row, cells={k: c if c.link in keys else replace(c, link="") for k, c in row.cells.items()})
        for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def _facets(records: Sequence[Record]) -> list[tuple[str, str, list[str]]]:
    """The filters for records: attribute, title, and values. A filter needs at least two values."""
    cells = [record.cell for record in records]
    found = (
        ("dataset", "all data", natural_order({cell.training.dataset.label for cell in cells})),
        ("goal", "all goals", [goal for goal in goals() if any(cell.goal == goal for cell in cells)]),
        ("threat", "all threats", natural_order({cell.threat for cell in cells})),
    )
    return [(name, title, values) for name, title, values in found if len(values) > 1]


def _strips(folder: Path, record: Record, originals: Images, reconstructions: Images) -> list[Strip]:
    """Write a record's images. Without reconstructions there are none: originals alone say nothing about an attack."""
    made = reconstructions(record)
    return [] if made is None else save_strips(folder, originals(record), made)


def _gallery(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Reconstructions by data set, model and threat: one seed per defense, attack, round and batch size."""
    alike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in (entry for entry in entries if entry.record.cell.goal == "reconstruction"):
        cell, training = entry.record.cell, entry.record.cell.training
        heading = f"{training.dataset.label} · {training.model.label} · {cell.threat}"
        heading += f" · batch size {cell.batch_size}" + (" · labels known" if cell.known_labels else "")
        place = (heading, training.defense.label, cell.attack.label, cell.moment or "")
        alike.setdefault(place, []).append(entry)
    gallery: dict[str, list[Entry]] = {}
    for (heading, *_), same in alike.items():
        first = next((entry for entry in same if entry.record.status == "ok" and entry.strips), same[0])
        gallery.setdefault(heading, []).append(replace(first, repeats=len(same)))
    return gallery
