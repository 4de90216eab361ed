"""The picture table: the right tiles in the right cells, a status where there are none, names that cannot break out."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from leakboard.leaderboard.page.picture_table import (
    CSS_DPI,
    DPI,
    GAP,
    Panel,
    PictureTable,
    draw,
    picture_tables,
    remove_other_figures,
    save_picture_tables,
)
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.synthetic import membership, reconstruction

SIDE = 4


def grey(*values: float) -> Tensor:
    """One even image for each value: (N, 1, 4, 4)."""
    return torch.tensor(values).reshape(-1, 1, 1, 1).expand(-1, 1, SIDE, SIDE)


def shades(panel: Panel) -> list[int]:
    """The shade of each tile of a panel, read from its middle; that every pixel of the tile has it is checked."""
    assert panel.pixels is not None
    assert panel.pixels.dtype == np.uint8
    assert panel.pixels.shape[0] == SIDE
    assert panel.pixels.shape[2] == 3
    tiles: list[NDArray[np.uint8]] = np.split(panel.pixels, range(SIDE, panel.pixels.shape[1], SIDE + GAP), axis=1)
    kept = [tiles[0], *(tile[:, GAP:] for tile in tiles[1:])]
    assert all(tile.shape[1] == SIDE and (tile == tile[0, 0]).all() for tile in kept)
    return [int(tile[0, 0, 0]) for tile in kept]


TRUTH = grey(0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
BASE = {"fedsgd": 20, "mp": 80}  # shades, of 255
STEP = {"inverting-gradients": 0, "gifd": 3, "prior-mean": 6}


def truth(record: Record) -> Tensor | None:
    return TRUTH if record.target_indices else None


def made(record: Record) -> Tensor | None:
    """Six images whose shades tell the defense, the attack and the number of the target."""
    wanted = expected(record.cell.training.defense.label, record.cell.attack.label, 6)
    return grey(*(shade / 255 for shade in wanted))


def expected(defense: str, attack: str, number: int = 4) -> list[int]:
    return [BASE[defense] + STEP[attack] + 25 * index for index in range(number)]


def only(records: list[Record]) -> PictureTable:
    (table,) = picture_tables(records, truth, made)
    return table


def test_every_cell_shows_the_first_targets_of_its_own_attack_and_defense() -> None:
    # the last targets score best by far, and the prior comes first in the run
    scores = [1.0, 2.0, 3.0, 4.0, 50.0, 60.0]
    records = [reconstruction(d, a, scores) for d in ("mp", "fedsgd") for a in ("prior-mean", "gifd")]
    table = only(records)
    assert table.columns == ("original", "gifd", "prior-mean")
    assert [name for name, _ in table.rows] == ["mp", "fedsgd"]
    for defense, (original, *panels) in table.rows:
        assert shades(original) == [0, 51, 102, 153]
        assert [shades(panel) for panel in panels] == [expected(defense, a) for a in ("gifd", "prior-mean")]
        assert [panel.caption for panel in panels] == ["20.0 dB"] * 2  # the mean of all six
    fewer = picture_tables(records, truth, made, tiles=2)[0]
    assert shades(fewer.rows[0][1][1]) == expected("mp", "gifd", 2)


def test_values_outside_are_clamped_and_colours_kept() -> None:
    def wild(_: Record) -> Tensor:
        return torch.tensor([-3.0, 0.2, 7.0]).reshape(1, 3, 1, 1).expand(1, 3, SIDE, SIDE)

    table = picture_tables([reconstruction()], truth, wild)[0]
    panel = table.rows[0][1][1]
    assert panel.pixels is not None
    assert panel.pixels.tolist() == [[[0, 51, 255]] * SIDE] * SIDE


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed", "skipped"])
def test_what_is_missing_says_why(status: str) -> None:
    records = [
        reconstruction("fedsgd"),
        reconstruction("fedsgd", "gifd", status=status),  # type: ignore[arg-type]
        reconstruction("mp", status=status),  # type: ignore[arg-type]
    ]
    (_, (_, worked, broken)), (_, (original, lost, absent)) = only(records).rows
    assert shades(worked) == expected("fedsgd", "inverting-gradients")
    assert broken == Panel(None, f"{status}: broken")
    assert shades(original) == [0, 51, 102, 153]  # those of the other defense: all are attacked on the same
    assert lost == Panel(None, f"{status}: broken")
    assert absent == Panel(None, "not computed yet")


def test_what_was_not_kept_is_told() -> None:
    (table,) = picture_tables([reconstruction()], lambda _: None, lambda _: None)
    assert table.rows == (
        ("fedsgd", (Panel(None, "the data is not on this machine"), Panel(None, "11.0 dB; no images were kept"))),
    )
    empty = picture_tables([reconstruction()], truth, lambda _: TRUTH[:0])[0].rows[0][1][1]
    assert empty == Panel(None, "11.0 dB; no images were kept")


def test_there_is_one_table_a_round_of_the_first_seed_and_none_without_reconstructions() -> None:
    records = [
        reconstruction(d, psnr=[10.0 + seed], moment=moment, seed=seed)
        for d in ("fedsgd", "mp")
        for seed in (7, 3)
        for moment in ("first", "last")
    ]
    tables = picture_tables([*records, membership()], truth, made)
    assert [(table.dataset, table.threat, table.moment, table.seed) for table in tables] == [
        ("digits", "server", "first", 7),
        ("digits", "server", "last", 7),
    ]
    assert [panels[1].caption for table in tables for _, panels in table.rows] == ["17.0 dB"] * 4
    assert picture_tables([membership()], truth, made) == []


def test_an_attack_that_was_told_the_labels_says_so() -> None:
    record = reconstruction()
    told = record.model_copy(update={"cell": record.cell.model_copy(update={"known_labels": True})})
    assert only([told]).columns == ("original", "inverting-gradients, labels known")


def test_the_drawing_has_the_tiles_in_the_order_of_the_table() -> None:
    content, width, height = draw(only([reconstruction("fedsgd"), reconstruction("mp", status="failed")]))
    paper = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert paper.shape == (pytest.approx(height * DPI, abs=1), pytest.approx(width * DPI, abs=1), 3)
    # The line through the middle of a row's tiles crosses their shades one after the other, left to right.
    wanted = [0, 51, 102, 153, *expected("fedsgd", "inverting-gradients")]
    lines = [[int(v) for v, n in _runs(line[:, 0]) if n > DPI / 4 and v < 255] for line in paper]
    assert wanted in lines
    assert wanted[:4] in lines  # the failed row: the originals alone


def _runs(line: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Values of a line of pixels with the number of times that each is repeated."""
    starts = np.flatnonzero(np.r_[True, line[1:] != line[:-1]])
    return list(zip(line[starts].tolist(), np.diff(np.r_[starts, len(line)]).tolist(), strict=True))


@pytest.mark.parametrize(
    "label", ["../../etc/passwd", "C:\\x", "a b<script>", "$\\frac{1}{$", "数据", "\x00\x1b[31m", "x" * 300]
)
@pytest.mark.filterwarnings("error")
def test_no_label_breaks_a_file_name_or_the_drawing(label: str, tmp_path: Path) -> None:
    def relabelled(record: Record) -> Record:
        cell = record.cell.model_copy(update={"threat": label, "moment": label})
        training = cell.training.model_copy(update={"defense": cell.attack.model_copy(update={"label": label})})
        attack = cell.attack.model_copy(update={"label": label})
        return record.model_copy(
            update={"cell": cell.model_copy(update={"training": training, "attack": attack}), "reason": label}
        )

    (figure,) = save_picture_tables(tmp_path, [relabelled(reconstruction(status="failed"))], truth, made)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file == tmp_path / figure.picture.file
    assert file.parent == tmp_path / "figures"
    assert file.name.startswith("pictures-digits-")
    assert file.name.isascii()
    assert len(file.name) < 160


def test_tables_whose_names_meet_have_files_of_their_own_and_old_ones_go(tmp_path: Path) -> None:
    records = [reconstruction(moment=moment) for moment in ("a b", "a/b", "A?B")]
    figures = save_picture_tables(tmp_path, records, truth, made)
    names = [figure.picture.file for figure in figures]
    assert names == [f"figures/pictures-digits-server-a_b{end}.png" for end in ("", "-2", "-3")]
    with Image.open(tmp_path / names[0]) as image:
        assert image.width == pytest.approx(figures[0].picture.width * DPI / CSS_DPI, abs=2)
    (tmp_path / "figures" / "curve.png").write_bytes(b"another's")
    remove_other_figures(tmp_path, figures[:1])
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {Path(names[0]).name, "curve.png"}
