"""Improved Deep Leakage from Gradients: recover the labels first, then match."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.dlg import Dlg
from leakboard.attacks.reconstruction.matching.labels import labels_of


class IDlg(Dlg):
    """DLG with labels that are recovered from the last layer's gradient instead of optimised.

    The original recovers one label under cross-entropy. Batches and 1/2 ||.||^2 are our extension (see `labels`).
    """

    name: ClassVar[str] = "idlg"
    citation: ClassVar[str] = "Zhao et al., iDLG: Improved Deep Leakage from Gradients, arXiv 2001.02610, 2020"

    def labels_for(self, knowledge: Knowledge, problem: Inversion) -> Tensor | None:
        """The labels (M,) that the cell grants, otherwise the recovered ones."""
        return labels_of(knowledge, problem)
