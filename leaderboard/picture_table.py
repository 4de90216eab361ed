"""The paper's picture table: originals beside what each attack made of them, a row a defense, as a figure.

Every cell shows the same targets: the first ones by number, never the ones an attack did best on. What a cell holds is
settled in `picture_tables`, as arrays; `draw` only puts it on paper.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leaderboard.files import write_bytes
from leaderboard.pictures import Picture, side_by_side
from leaderboard.record import Record
from leaderboard.render.shared import plain
from leaderboard.tables import PRIOR

Images = Callable[[Record], Tensor | None]
TILES = 4  # targets to a cell: four columns of them still fit on a page
ORIGINAL = "original"

# Inches. At 192 pixels an inch a tile has 96 pixels, so that images of 32 are drawn with 3 × 3 pixels a pixel.
DPI, CSS_DPI = 192, 96
TILE, SPACE, MARGIN = 0.5, 0.2, 0.15
NAME, TITLE, HEADER, CAPTION = 1.3, 0.3, 0.42, 0.3
FONT = 8.5  # points
CHARACTER = 0.075  # of this font, more than most characters need
INK, SOFT, LINE, PAPER = "#1d2529", "#5a656b", "#dedbd0", "#ffffff"  # the page's own, in its light theme


@dataclass(frozen=True)
class Panel:
    """One cell: images side by side as bytes (H, W, 3), and what stands beneath them, or in their place."""

    pixels: NDArray[np.uint8] | None
    caption: str


@dataclass(frozen=True)
class PictureTable:
    """One figure: `rows` are a defense's label and its panels, the original's first, in the order of `columns`."""

    dataset: str
    threat: str
    moment: str
    seed: int
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def title(self) -> str:
        """What all cells of the figure have in common."""
        return f"{self.dataset} · {self.threat} · {self.moment} round · seed {self.seed}"

    @property
    def description(self) -> str:
        """The figure in words, for those who do not see it."""
        attacks, defenses = ", ".join(self.columns[1:]), ", ".join(name for name, _ in self.rows)
        return f"{self.title}: originals beside the reconstructions of {attacks}; a row a defense: {defenses}"


@dataclass(frozen=True)
class Figure:
    """A picture table and the file of the page that it was drawn into."""

    table: PictureTable
    picture: Picture


def picture_tables(
    records: Iterable[Record], originals: Images, reconstructions: Images, tiles: int = TILES
) -> list[PictureTable]:
    """One table for each data set, threat and observed round, of the first seed, in the order of the records.

    `originals` and `reconstructions` give a record's images (N, C, H, W), row i of one belonging to row i of the other.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        cell = record.cell
        if cell.goal == "reconstruction":
            groups.setdefault((cell.training.dataset.label, cell.threat, cell.moment or "no"), []).append(record)
    return [_table(place, group, originals, reconstructions, tiles) for place, group in groups.items()]


def _table(
    place: tuple[str, str, str], group: Sequence[Record], originals: Images, reconstructions: Images, tiles: int
) -> PictureTable:
    seed = group[0].cell.training.seed
    found: dict[str, dict[str, Record]] = {}
    for record in group:
        row = found.setdefault(record.cell.training.defense.label, {})
        if record.cell.training.seed == seed:
            row.setdefault(_attack(record), record)
    attacks = dict.fromkeys(_attack(record) for record in sorted(group, key=lambda r: r.cell.attack.name == PRIOR))
    truths = {name: _first(originals(record) for record in row.values()) for name, row in found.items()}
    # all defenses are attacked on the same targets: one without any result still shows what it kept safe
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
    """A record's first reconstructions over its mean PSNR of all targets, or why there are none."""
    if record is None:
        return Panel(None, "not there yet")
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
    row: NDArray[np.uint8] = side_by_side(images[:number]).permute(1, 2, 0).numpy()
    return np.broadcast_to(row, (*row.shape[:2], 3))


# --- on paper -----------------------------------------------------------------------------------


def draw(table: PictureTable) -> tuple[bytes, float, float]:
    """The table as a PNG, with its width and height in inches."""
    import matplotlib as mpl  # a second of loading that only a page needs
    from matplotlib.figure import Figure as Paper

    wide, high = _panel_size(table)
    width = 2 * MARGIN + NAME + len(table.columns) * (wide + SPACE) - SPACE
    height = 2 * MARGIN + TITLE + HEADER + len(table.rows) * (high + CAPTION)
    # labels are text: no formula, no TeX, whatever the user's own settings say
    settings = {"font.family": "DejaVu Sans", "font.size": FONT, "text.parse_math": False, "text.usetex": False}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script without letters here
        paper = Paper(figsize=(width, height), dpi=DPI, facecolor=PAPER)

        def write(x: float, y: float, text: str, **look: object) -> None:
            paper.text(x / width, 1 - y / height, text, **{"color": INK, "va": "top", **look})

        write(MARGIN, MARGIN, _lines(table.title, width - 2 * MARGIN, 1), color=SOFT)
        lefts = [MARGIN + NAME + index * (wide + SPACE) for index in range(len(table.columns))]
        for left, name in zip(lefts, table.columns, strict=True):
            write(left, MARGIN + TITLE + HEADER - 0.07, _lines(name, wide, 2), va="bottom", weight="bold")
        for index, (name, panels) in enumerate(table.rows):
            top = MARGIN + TITLE + HEADER + index * (high + CAPTION)
            write(MARGIN, top + high / 2, _lines(name, NAME - SPACE, 3), va="center", weight="bold")
            for left, panel in zip(lefts, panels, strict=True):
                box = (left / width, 1 - (top + high) / height, wide / width, high / height)
                axes = paper.add_axes(box, frameon=panel.pixels is None, facecolor=PAPER, xticks=[], yticks=[])
                axes.spines[:].set_color(LINE)
                if panel.pixels is None:
                    write(left + wide / 2, top + high / 2, _lines(panel.caption, wide, 3), **_CENTRED)
                else:
                    axes.imshow(panel.pixels, interpolation="nearest", anchor="NW")
                    write(left, top + high + 0.04, panel.caption)
        out = io.BytesIO()
        paper.savefig(out, format="png", dpi=DPI)
    return out.getvalue(), width, height


_CENTRED = {"ha": "center", "va": "center", "color": SOFT, "style": "italic"}


def _panel_size(table: PictureTable) -> tuple[float, float]:
    """Width and height in inches that all panels get: those of the longest row of tiles, each about `TILE` wide."""
    sizes = [panel.pixels.shape for _, panels in table.rows for panel in panels if panel.pixels is not None]
    if not sizes:
        return TILES * TILE, TILE
    longest = max(width / height for height, width, _ in sizes)
    return longest * TILE, TILE


def _lines(text: str, inches: float, most: int) -> str:
    """Text broken into at most so many lines that fit, cut with an ellipsis.

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
        name = _file(table, {figure.picture.file for figure in figures})
        content, width, height = draw(table)
        write_bytes(folder / name, content)
        size = round(width * CSS_DPI), round(height * CSS_DPI)
        figures.append(Figure(table, Picture(name, len(table.rows) * len(table.columns), *size)))
    return figures


def remove_other_figures(folder: Path, kept: Iterable[Figure]) -> None:
    """Remove from `folder/figures` the picture tables of an earlier page."""
    names = {figure.picture.file for figure in kept}
    for path in (folder / "figures").glob("pictures-*.png"):
        if f"figures/{path.name}" not in names:
            path.unlink()


def _file(table: PictureTable, taken: set[str]) -> str:
    """A file name that no label can break out of, and that no two tables share, on any file system."""
    parts = [re.sub(r"[^a-z0-9._]+", "_", part.lower())[:40] for part in (table.dataset, table.threat, table.moment)]
    stem = "figures/" + "-".join(["pictures", *parts])
    names = (f"{stem}{suffix}.png" for suffix in ("", *(f"-{number}" for number in range(2, len(taken) + 3))))
    return next(name for name in names if name not in taken)
