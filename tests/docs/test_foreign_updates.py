"""docs/foreign-updates.md: its example prints what it says, and its table says what every attack does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import leakboard as lb
from leakboard.attacks.base import Attack
from leakboard.contract.small import small
from leakboard.core import registry
from leakboard.core.registry import ROOT
from tests.leaderboard.api.foreign import SHAPE, gradient_of, perceptron, smooth

TEXT = (ROOT / "docs" / "foreign-updates.md").read_text()


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)[0]
    (promised,) = re.findall(r"print\(.*  # (.*)", code)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.strip() == promised
    assert (tmp_path / "found.png").is_file()


ATTACKS: dict[str, str] = {attack["name"]: attack["goal"] for attack in lb.plugins("attacks")}
ASKED = sorted(name for name, goal in ATTACKS.items() if goal in ("reconstruction", "membership"))
MEMBERSHIP = [name for name in ASKED if ATTACKS[name] == "membership"]


def table() -> dict[str, str]:
    """What the table says of each attack in its first column."""
    text = TEXT[TEXT.index("## What applies") : TEXT.index("What cannot be attacked")]
    rows = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")]
    return {name: said for first, said in rows for name in re.findall(r"`([a-z+-]+)`", first)}


def test_the_table_names_attacks_that_there_are() -> None:
    assert table().keys() <= ATTACKS.keys()


def test_the_table_names_every_reconstruction_and_membership_attack() -> None:
    assert set(ASKED) - table().keys() == set()


def applies(name: str) -> bool:
    return table().get(name, "no").startswith("yes")


def answered(name: str, **changes: Any) -> lb.AttackResult:
    """A small call on the gradient of one record of a fully connected network; the candidates' first is that record."""
    net, (images, labels) = perceptron(), smooth(30)
    settings: dict[str, Any] = {
        "gradient": gradient_of(net, images[:1], labels[:1]),
        "shape": SHAPE,
        "auxiliary": (images[10:], labels[10:]),
    }
    if ATTACKS[name] == "membership":
        settings["candidates"] = images[:6], labels[:6]
        settings["known"] = images[6:10], labels[6:10], torch.tensor([True, True, False, False])
    chosen = registry.load("attack", name)
    assert issubclass(chosen, Attack)
    return lb.attack(small(chosen), model=net, **{**settings, **changes})


@pytest.mark.parametrize("name", ASKED)
def test_attacks_do_what_the_table_says_on_one_foreign_gradient(name: str) -> None:
    if not applies(name):
        with pytest.raises(lb.UserError):
            answered(name)
        return
    found = answered(name)
    if ATTACKS[name] == "membership":
        assert found.scores.shape == found.decisions.shape == (6,)
        assert bool(found.scores.isfinite().all())
        assert name != "gradient-membership" or int(found.scores.argmax()) == 0
        return
    assert found.images.shape == (1, *SHAPE)
    assert bool(found.images.isfinite().all())
    assert found.cost is not None
    floor = answered("prior").cost
    assert floor is not None
    assert name == "prior" or found.cost < floor - 0.05


@pytest.mark.parametrize("name", [name for name in ASKED if not applies(name)])
def test_a_refusal_names_the_attack(name: str) -> None:
    with pytest.raises(lb.UserError) as caught:
        answered(name)
    assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in MEMBERSHIP if applies(name)])
def test_membership_without_auxiliary_images_is_answered_or_refused_as_the_table_says(name: str) -> None:
    if "with `auxiliary`" in table()[name]:
        with pytest.raises(lb.UserError, match="auxiliary"):
            answered(name, auxiliary=None)
    else:
        assert bool(answered(name, auxiliary=None).scores.isfinite().all())
