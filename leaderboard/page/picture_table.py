"""The paper's picture table: originals beside the reconstructions of each attack, one row per defense.

Every panel shows the same targets: the first by number, never the best of an attack. `picture_tables` collects the
content as arrays; `draw` makes the image.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leakboard.core.files import write_bytes
from leakboard.core.terminal import plain
from leakboard.leaderboard.page.pictures import Picture, side_by_side
from leakboard.leaderboard.records.record import PRIOR, Record

Images = Callable[[Record], Tensor | None]
TILES = 4  # targets per panel: four such columns still fit on a page
ORIGINAL = "original"
GAP, WHITE = 2, 255  # pixels between two images, in the colour of the paper, so that noise has visible edges

# Inches. At 192 pixels per inch a tile has 96 pixels, so an image of 32 pixels is enlarged exactly three times.
DPI, CSS_DPI = 192, 96
TILE, SPACE, MARGIN, GUTTER = 0.5, 0.2, 0.15, 0.05
NAME, TITLE, LINE_HEIGHT, CAPTION = 1.3, 0.3, 0.15, 0.3  # NAME is the widest a defense's name may be
FONT = 8.5  # points
CHARACTER = 0.075  # width of a wide character in this font
INK, SOFT, LINE, PAPER = "#1d2529", "#5a656b", "#dedbd0", "#ffffff"  # the colours of the page's light theme


@dataclass(frozen=True)
class Panel:
    """One panel: images side by side as bytes (H, W, 3), and the caption below them, or instead of them."""

    pixels: NDArray[np.uint8] | None
    caption: str


@dataclass(frozen=True)
class PictureTable:
    """One figure. A row is a defense's label and its panels in the order of `columns`, originals first."""

    dataset: str
    threat: str
    moment: str
    batch_size: int
    seed: int
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def title(self) -> str:
        """What all panels of the figure have in common."""
        place = f"{self.moment} round" if self.moment else "whole run"
        return f"{self.dataset} · {self.threat} · {place} · batch size {self.batch_size} · seed {self.seed}"

    @property
    def description(self) -> str:
        """The figure in words, for readers who cannot see it."""
        attacks, defenses = ", ".join(self.columns[1:]), ", ".join(name for name, _ in self.rows)
        return f"{self.title}: originals beside the reconstructions of {attacks}; one row per defense: {defenses}"


@dataclass(frozen=True)
class Figure:
    """A picture table and its file."""

    table: PictureTable
    picture: Picture


def picture_tables(
    records: Iterable[Record], originals: Images, reconstructions: Images, tiles: int = TILES
) -> list[PictureTable]:
    """One table per data set, threat, observed round and batch size, with the first seed, in the records' order.

    `originals` and `reconstructions` return a record's images (N, C, H, W); row i of one belongs to row i of the other.
    """
    groups: dict[tuple[str, str, str, int], list[Record]] = {}
    for record in records:
        cell = record.cell
        if cell.goal == "reconstruction":
            place = (cell.training.dataset.label, cell.threat, cell.moment or "", cell.batch_size)
            groups.setdefault(place, []).append(record)
    return [_table(place, group, originals, reconstructions, tiles) for place, group in groups.items()]


def _table(
    place: tuple[str, str, str, int], group: Sequence[Record], originals: Images, reconstructions: Images, tiles: int
) -> PictureTable:
    seed = group[0].cell.training.seed
    found: dict[str, dict[str, Record]] = {}
    for record in group:
        row = found.setdefault(record.cell.training.defense.label, {})
        if record.cell.training.seed == seed:
            row.setdefault(_attack(record), record)
    attacks = dict.fromkeys(_attack(record) for record in sorted(group, key=lambda r: r.cell.attack.name == PRIOR))
    truths = {name: _first(originals(record) for record in row.values()) for name, row in found.items()}
    # all defenses are attacked on the same targets: one without results can still show the originals
    anyone = _first(truths.values())
    rows = []
    for name, row in found.items():
        truth = anyone if truths[name] is None else truths[name]
        original = Panel(_tiles(truth, tiles), "" if truth is not None else "the data is not on this machine")
        rows.append((name, (original, *(_panel(row.get(attack), reconstructions, tiles) for attack in attacks))))
    return PictureTable(*place, seed, (ORIGINAL, *attacks), tuple(rows))


def _attack(record: Record) -> str:
    return record.cell.attack.label + (", labels known" if record.cell.known_labels else "")


def _first(found: Iterable[Tensor | None]) -> Tensor | None:
    return next((images for images in found if images is not None), None)


def _panel(record: Record | None, reconstructions: Images, tiles: int) -> Panel:
    """A record's first reconstructions above its mean PSNR over all targets, or the reason why there are none."""
    if record is None:
        return Panel(None, "not computed yet")
    if record.status != "ok":
        return Panel(None, ": ".join(filter(None, (record.status, record.reason))))
    score = record.scores.get("psnr")
    caption = "no PSNR" if score is None or score.value is None else f"{score.value:.1f} dB"
    pixels = _tiles(reconstructions(record), tiles)
    return Panel(pixels, caption if pixels is not None else f"{caption}; no images were kept")


def _tiles(images: Tensor | None, number: int) -> NDArray[np.uint8] | None:
    """The first images (N, C, H, W), clamped to [0, 1], as one array (H, W, 3)."""
    if images is None or len(images) == 0:
        return None
    row: NDArray[np.uint8] = side_by_side(images[:number], GAP, WHITE).permute(1, 2, 0).numpy()
    return np.broadcast_to(row, (*row.shape[:2], 3))


# --- on paper -----------------------------------------------------------------------------------


def draw(table: PictureTable, form: str = "png") -> tuple[bytes, float, float]:
    """The table as a file of this format (`png`, `svg`, `pdf`), with its width and height in inches."""
    from matplotlib import style  # loading takes a second, and only pages need it
    from matplotlib.figure import Figure as Paper

    wide, high = _panel_size(table)
    names = [_lines(name, NAME, 3) for name, _ in table.rows]
    headers = [_lines(name, wide, 2) for name in table.columns]
    start = MARGIN + SPACE + max(len(line) for name in names for line in name.split("\n")) * CHARACTER
    lefts = [start + index * (wide + SPACE) for index in range(len(headers))]
    first = MARGIN + TITLE + LINE_HEIGHT * max(name.count("\n") + 1 for name in headers) + GUTTER
    width, height = lefts[-1] + wide + MARGIN, first + len(table.rows) * (high + CAPTION) + MARGIN
    # labels are text, not formulas; the user's own settings of matplotlib are ignored
    look = style.context({"font.size": FONT, "text.parse_math": False, "pdf.fonttype": 42}, after_reset=True)
    with look, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script that the font lacks
        sheet = _Sheet(Paper(figsize=(width, height), dpi=DPI, facecolor=PAPER), width, height)
        sheet.write(MARGIN, MARGIN, _lines(table.title, width - 2 * MARGIN, 1), color=SOFT)
        for left, name in zip(lefts, headers, strict=True):
            sheet.write(left, first - GUTTER, name, va="bottom", weight="bold")
        for index, (_, panels) in enumerate(table.rows):
            top = first + index * (high + CAPTION)
            sheet.write(MARGIN, top + high / 2, names[index], va="center", weight="bold")
            for left, panel in zip(lefts, panels, strict=True):
                sheet.put(panel, left, top, wide, high)
        out = io.BytesIO()
        sheet.paper.savefig(out, format=form, dpi=DPI)
    return out.getvalue(), width, height


@dataclass(frozen=True)
class _Sheet:
    """A figure with positions in inches from the upper left corner."""

    paper: Any
    width: float
    height: float

    def write(self, x: float, y: float, text: str, **look: str) -> None:
        self.paper.text(x / self.width, 1 - y / self.height, text, **{"color": INK, "va": "top", **look})

    def put(self, panel: Panel, left: float, top: float, wide: float, high: float) -> None:
        """Draw a frame with the panel's tiles in it and the caption below, or with the caption in it."""
        box = (left / self.width, 1 - (top + high) / self.height, wide / self.width, high / self.height)
        axes = self.paper.add_axes(box, anchor="NW", xticks=[], yticks=[])
        axes.spines[:].set_color(LINE)
        if panel.pixels is None:
            words = _lines(panel.caption, wide, 3)
            self.write(left + wide / 2, top + high / 2, words, ha="center", va="center", color=SOFT)
        else:
            axes.imshow(panel.pixels, interpolation="nearest")
            self.write(left, top + high + GUTTER, panel.caption)


def _panel_size(table: PictureTable) -> tuple[float, float]:
    """Width and height of all panels in inches: those of the longest row of tiles, each `TILE` high."""
    sizes = [panel.pixels.shape for _, panels in table.rows for panel in panels if panel.pixels is not None]
    if not sizes:
        return TILES * TILE, TILE
    return max(width / height for height, width, _ in sizes) * TILE, TILE


def _lines(text: str, inches: float, most: int) -> str:
    """Text in at most `most` lines of this width, cut with an ellipsis.

    >>> _lines("a defense of a long name", 0.75, 2)
    'a defense\\nof a long…'
    """
    return "\n".join(textwrap.wrap(plain(text), max(4, int(inches / CHARACTER)), max_lines=most, placeholder="…"))


# --- on the page --------------------------------------------------------------------------------


def save_picture_tables(
    folder: Path, records: Iterable[Record], originals: Images, reconstructions: Images
) -> list[Figure]:
    """Draw all picture tables of a run into `folder/figures`."""
    figures: list[Figure] = []
    for table in picture_tables(records, originals, reconstructions):
        name = picture_file(table, {figure.picture.file for figure in figures})
        content, width, height = draw(table)
        write_bytes(folder / name, content)
        size = round(width * CSS_DPI), round(height * CSS_DPI)
        figures.append(Figure(table, Picture(name, len(table.rows) * len(table.columns), *size)))
    return figures


def remove_other_figures(folder: Path, kept: Iterable[Figure]) -> None:
    """Remove the picture tables of an earlier page from `folder/figures`."""
    names = {figure.picture.file for figure in kept}
    for path in (folder / "figures").glob("pictures-*.png"):
        if f"figures/{path.name}" not in names:
            path.unlink()


def picture_file(table: PictureTable, taken: set[str]) -> str:
    """A unique file name on any file system. No label can break out of the folder."""
    size = (f"b{table.batch_size}",) if table.batch_size > 1 else ()
    labels = (table.dataset, table.threat, table.moment or "run", *size)
    parts = [re.sub(r"[^a-z0-9._-]+", "_", label.lower())[:40] for label in labels]
    stem = "figures/" + "-".join(["pictures", *parts])
    names = (f"{stem}{suffix}.png" for suffix in ("", *(f"-{number}" for number in range(2, len(taken) + 3))))
    return next(name for name in names if name not in taken)
