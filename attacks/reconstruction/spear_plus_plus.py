"""SPEAR++: exact images of large batches from a fully connected first layer, by sparse dictionary learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.reconstruction.analytic import Analytic
from leakboard.attacks.reconstruction.closed_form.dictionary import learned
from leakboard.attacks.reconstruction.closed_form.disaggregation import Factors


class SpearPlusPlus(Analytic):
    """The batches of `analytic` and larger ones: the backward signal is found as a sparse dictionary.

    G = dL/dW = S X of B records has S = U Q with U (m, B) the left singular vectors, and the ReLU leaves about half of
    S zero. `analytic` draws B - 1 rows of U and hopes that they are zeros of one record, which takes 2^(B - 1) draws.
    This attack looks for the directions q in which U q is sparse, by iteratively reweighted least squares from many
    starts (`closed_form.dictionary`). Signs, scales and labels follow as in `analytic`, and so does the check: an
    answer whose gradient is not the observed one is flagged. It needs a layer much wider than the batch.

    Bakarsky et al. compare published solvers of complete dictionary learning; the solver here is our own. They claim
    batches ten times as large as those of SPEAR, and robustness to noise. Their tables were not available to us. Ours
    needs gradients without noise: a gradient whose rank is not B gets the mean image (docs/attacks.md).

    The solver was built on single batches that are not in the table of docs/attacks.md. A batch that is solved ends the
    search, so more `samples` cost nothing there (docs/attacks.md has what fewer lose).
    """

    name: ClassVar[str] = "spear++"
    citation: ClassVar[str] = (
        "Bakarsky et al., SPEAR++: Scaling Gradient Inversion via Sparsely-Used Dictionary Learning, 2025"
    )
    most_records: ClassVar[int] = 256

    samples: int = Field(8192, ge=1, description="starts of the search for sparse directions, per batch")

    def separated(
        self, matrix: Tensor, records: int, random: torch.Generator, stop: Callable[[], bool]
    ) -> Iterator[Factors]:
        """Successively better guesses at the records in the first layer's gradient (n, D)."""
        return learned(matrix, records, self.samples, random, stop)
