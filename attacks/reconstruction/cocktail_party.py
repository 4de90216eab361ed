"""The Cocktail Party attack: a sum over many records, taken apart by independent component analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.analytic import Analytic
from leakboard.attacks.reconstruction.closed_form.disaggregation import Factors
from leakboard.attacks.reconstruction.closed_form.unmixing import cocktail


class CocktailParty(Analytic):
    """Records of a large batch, or of a sum over clients, from the gradient of a fully connected first layer.

    G = dL/dW = A X mixes the B inputs X (B, n) by an unknown A (m, B), m >= B. Independent component analysis looks for
    the rotation of the whitened rows that makes them least Gaussian (negentropy by log cosh). Here it is applied to
    differences of neighbouring pixels, which are mixed by the same A: see `closed_form.unmixing`. Unlike `analytic` it
    needs no zeros of a ReLU and no draws whose number grows as 2^B, so it also takes sums over many records apart
    (secure aggregation). It is approximate. Signs and scales follow as in `analytic`: from the bias, or else from the
    known network.

    The paper separates pixels, with a decorrelation penalty and total variation, and reports batches of up to 1,024
    (ImageNet). Its figures per batch were not available to us, and its public code leaves the negentropy out, so no
    published figure is compared (docs/attacks.md). Its variant for convolutional networks is not built.

    100 to 1,000 `iterations` gave the same PSNR on auxiliary images (docs/attacks.md).
    """

    name: ClassVar[str] = "cocktail-party"
    citation: ClassVar[str] = "Kariyappa et al., Cocktail Party Attack: Breaking Aggregation-Based Privacy, ICML 2023"
    most_records: ClassVar[int] = 1024

    iterations: int = Field(500, ge=1, le=1_000_000, description="steps of the separation")

    def budget(self) -> dict[str, int]:
        """Steps of the separation."""
        return {"iterations": self.iterations}

    def separated(
        self, matrix: Tensor, records: int, random: torch.Generator, stop: Callable[[], bool]
    ) -> Iterator[Factors]:
        """One guess."""
        yield cocktail(matrix, records, self._shape, self.iterations, random, stop)

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Solve every problem on its own."""
        self._shape = knowledge.public.shape
        return super().reconstruct(knowledge, task)

    _shape: tuple[int, int, int] = (1, 1, 1)
