"""Feature MSE: how differently the attacked model sees the reconstruction and the original."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.metrics.base import Aggregate, ReconstructionMetric, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.images import mean_score


def feat_mse(reconstruction_logits: Tensor, original_logits: Tensor) -> Tensor:
    """Mean squared difference of the logits of each image, over all classes.

    FMSE_i = mean over classes c of (logit_c(reconstruction_i) - logit_c(original_i))^2

    It covers all classes. breaching restricts it to the labels of the batch, so that its value depends on them.

    Shapes: both (N, classes), matched; returns float64 (N,).
    Definition: the FMSE of invertinggradients' `rec_mult.py` (Geiping et al. 2020).

    >>> import torch
    >>> feat_mse(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]])).tolist()
    [5.0]
    """
    if reconstruction_logits.ndim != 2 or reconstruction_logits.shape != original_logits.shape:
        raise ValueError(
            f"both logits must have one shape (N, classes); given: {tuple(reconstruction_logits.shape)} "
            f"and {tuple(original_logits.shape)}."
        )
    return (reconstruction_logits.detach().double() - original_logits.detach().double()).square().mean(dim=1)


class FeatMse(ReconstructionMetric):
    """Mean squared difference of the true model's logits on reconstruction and original.

    Definition: `metrics.feat_mse.feat_mse`; the model of the attacked round, in eval mode, on clamped images.
    """

    name: ClassVar[str] = "feat_mse"
    title: ClassVar[str] = "Feat-MSE"
    digits: ClassVar[int] = 4
    significant: ClassVar[int | None] = 3
    aggregate: ClassVar[Aggregate] = "mean"
    tolerance: ClassVar[float] = 0.1
    citation: ClassVar[str] = "Geiping et al., Inverting Gradients, NeurIPS 2020"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Mean of the images' feature MSE; None if there are no logits."""
        if truth.reconstruction_logits is None or truth.original_logits is None:
            return Score(None, reason="there are no logits: no model was attacked here")
        return mean_score(feat_mse(truth.reconstruction_logits, truth.original_logits))
