"""The figures of a run as files for papers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakboard.core.errors import UserError
from leakboard.leaderboard.page.figures import FORMATS, save_figures
from tests.leaderboard.page.test_charts import a_run, boards

STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


def test_every_figure_is_there_in_every_format(tmp_path: Path) -> None:
    records = a_run("mp-dp")
    pictures = torch.rand(2, 1, 8, 8)
    written = save_figures(tmp_path, boards(records), records, lambda _: pictures, lambda _: pictures)
    stems = {path.stem for path in written}
    assert {stem.partition("-")[0] for stem in stems} == {"chart", "pictures"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{stem}.{form}" for stem in stems for form in FORMATS}
    for path in written:
        content = path.read_bytes()
        assert content.startswith(STARTS[path.suffix[1:]]), path.name
        assert b"/Type3" not in content, "journals refuse fonts of Type 3"


def test_only_the_formats_that_were_asked_for(tmp_path: Path) -> None:
    records = a_run("mp-dp")
    written = save_figures(tmp_path, boards(records), records, lambda _: None, lambda _: None, ["pdf"])
    assert written
    assert {path.suffix for path in tmp_path.iterdir()} == {".pdf"}
    with pytest.raises(UserError, match=r"Figures are written as svg, png, pdf; given: gif\."):
        save_figures(tmp_path, (), (), lambda _: None, lambda _: None, ["gif"])
