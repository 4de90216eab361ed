"""Symbols are explained where they appear, and only there."""

from __future__ import annotations

import pytest

from leakboard.core.glossary import TERMS, explained
from leakboard.leaderboard.ranking.leaderboards import ranking_boards
from tests.leaderboard.page.test_charts import a_run
from tests.leaderboard.runs import call


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("reconstructs from Psi and Phi", ["Psi"]),
        ("the defense sends no Φ", ["Psi"]),
        ("phi-membership", ["Psi"]),
        ("a server that chose a small R", ["R"]),
        ("the additive noise r", ["r"]),
        ("mp-dp (V1)", ["V1"]),
        ("PSNR, ROC, FedSGD, Philadelphia", []),
    ],
)
def test_a_symbol_is_found(text: str, symbols: list[str]) -> None:
    assert [sentence.replace(":", " ").replace(",", " ").split()[0] for sentence in explained(text)] == symbols


def test_the_list_explains_its_symbols_before_it_uses_them() -> None:
    said = call("list", "attacks").out
    assert said.index("Psi and Phi (Ψ, Φ): ") < said.index("phi-inversion")
    assert said.index("R: the secret random factors") < said.index("adversarial-r")
    assert not any(meaning in call("list", "models").out for meaning in TERMS.values())


def test_a_table_explains_the_symbols_of_its_rows() -> None:
    def notes(defense: str) -> str:
        return " ".join(note for board in ranking_boards(a_run(defense), "fedsgd", 0.9) for note in board.table.notes)

    assert "V1, V2: two readings" in notes("mp-dp (V1)")
    assert "V1, V2" not in notes("clip")
