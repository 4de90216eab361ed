"""PSNR, MSE, Test-MSE, feature MSE and SSIM against scikit-image, torchmetrics and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import skimage.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_squared_error as sklearn_mse
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure
from torchmetrics.functional.regression import mean_squared_error as torch_mse

from leakboard.metrics.base import ReconstructionMetric, ReconstructionTruth
from leakboard.metrics.feat_mse import FeatMse, feat_mse
from leakboard.metrics.mse import Mse, mse
from leakboard.metrics.normalised_mse import NormalisedMse, normalised_mse
from leakboard.metrics.psnr import Psnr, psnr
from leakboard.metrics.ssim import Ssim, ssim
from tests.metrics.helpers import images, truth

peer: Any = skimage.metrics  # its functions have no types
Pure = Callable[[Tensor, Tensor], Tensor]
shapes = st.tuples(st.integers(1, 3), st.sampled_from([1, 3]), st.integers(11, 20), st.integers(0, 10**6))
quick = settings(max_examples=15, deadline=None)


def pair(shape: tuple[int, int, int, int], noise: float = 0.2) -> tuple[Tensor, Tensor]:
    count, channels, size, seed = shape
    original = images(count, channels, size, seed)
    return original + noise * (images(count, channels, size, seed + 1) - 0.5), original


@quick
@given(shapes)
def test_psnr_and_mse_against_scikit_image(shape: tuple[int, int, int, int]) -> None:
    reconstruction, original = pair(shape)
    shown = reconstruction.clamp(0, 1).double().numpy()
    for i, image in enumerate(original.double().numpy()):
        assert float(mse(reconstruction, original)[i]) == pytest.approx(peer.mean_squared_error(image, shown[i]))
        expected = peer.peak_signal_noise_ratio(image, shown[i], data_range=1)
        assert float(psnr(reconstruction, original)[i]) == pytest.approx(expected)


@quick
@given(shapes)
def test_ssim_against_scikit_image_and_torchmetrics(shape: tuple[int, int, int, int]) -> None:
    reconstruction, original = pair(shape, noise=1.0)
    ours = ssim(reconstruction, original)
    shown = reconstruction.clamp(0, 1).double()
    theirs = [
        peer.structural_similarity(
            a, b, data_range=1, channel_axis=0, gaussian_weights=True, use_sample_covariance=False, sigma=1.5
        )
        for a, b in zip(shown.numpy(), original.double().numpy(), strict=True)
    ]
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-12)
    # torchmetrics averages over a reflected border as well: its map is cut to the windows that lie inside
    _, full = structural_similarity_index_measure(
        shown, original.double(), data_range=1.0, reduction="none", return_full_image=True
    )
    assert isinstance(full, Tensor)
    inside = full[..., 5:-5, 5:-5].flatten(1).mean(1)
    np.testing.assert_allclose(ours.numpy(), inside.numpy(), rtol=1e-6, atol=1e-9)


def test_normalised_mse_is_the_mse_of_normalised_tensors_and_does_not_clamp() -> None:
    original, reconstruction = images(), images(seed=1) * 4 - 2
    mean, std = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.24, 0.26])
    seen = [(x - mean[:, None, None]) / std[:, None, None] for x in (reconstruction, original)]
    ours = normalised_mse(reconstruction, original, std.tolist())
    for i in range(3):
        assert float(ours[i]) == pytest.approx(float(torch_mse(seen[0][i].flatten(), seen[1][i].flatten())), rel=1e-4)
    assert float(ours.min()) > 1
    with pytest.raises(ValueError, match="3 channels"):
        normalised_mse(reconstruction, original, [0.25])


def test_feat_mse_against_scikit_learn() -> None:
    ours, true = torch.randn(4, 10), torch.randn(4, 10)
    expected = [sklearn_mse(a, b) for a, b in zip(true.double().numpy(), ours.double().numpy(), strict=True)]
    np.testing.assert_allclose(feat_mse(ours, true).numpy(), expected)


def test_feat_mse_without_logits_or_with_broken_ones_is_none_with_the_reason() -> None:
    image = images()
    without = FeatMse().score(ReconstructionTruth(image, image, (0.5,) * 3, (0.25,) * 3))
    assert without.value is None
    assert "no logits" in without.reason
    logits = torch.tensor([[math.nan, 1.0]] * 3)
    broken = FeatMse().score(ReconstructionTruth(image, image, (0.5,) * 3, (0.25,) * 3, logits, logits))
    assert broken.value is None
    assert broken.reason


def test_a_perfect_image_is_capped_and_does_not_take_the_batch_with_it() -> None:
    original = images(2)
    reconstruction = original.clone()
    reconstruction[1] = (original[1] + 0.5) % 1
    values = psnr(reconstruction, original)
    assert float(values[0]) == 60.0
    score = Psnr().score(truth(reconstruction, original))
    assert score.value == pytest.approx(float(values.mean()))
    assert score.per_item == tuple(values.tolist())
    assert ssim(original, original).tolist() == [1.0, 1.0]
    assert mse(original, original).tolist() == [0.0, 0.0]


def test_psnr_is_the_mean_over_images_and_not_pooled() -> None:
    original = torch.full((2, 1, 16, 16), 0.5)
    reconstruction = original + torch.tensor([0.1, 0.01]).reshape(2, 1, 1, 1)
    score = Psnr().score(truth(reconstruction, original))
    assert score.value == pytest.approx(30.0, abs=1e-3)  # pooled it would be 22.97 dB


@pytest.mark.parametrize(("level", "expected"), [(0.5, 1.0), (0.0, (0.01**2) / (0.25 + 0.01**2))])
def test_constant_images_have_the_ssim_of_their_luminance(level: float, expected: float) -> None:
    original = torch.full((1, 3, 16, 16), 0.5)
    assert float(ssim(torch.full_like(original, level), original)) == pytest.approx(expected)


def test_the_most_wrong_image_has_zero_decibels() -> None:
    assert psnr(torch.zeros(1, 1, 12, 12), torch.ones(1, 1, 12, 12)).tolist() == [0.0]


def test_small_images_have_no_ssim() -> None:
    with pytest.raises(ValueError, match="11 x 11"):
        ssim(images(size=8), images(size=8))
    score = Ssim().score(truth(images(size=8), images(size=8)))
    assert score.value is None
    assert "11 x 11" in score.reason


@pytest.mark.parametrize("function", [psnr, mse, ssim])
@pytest.mark.parametrize(
    ("reconstruction", "original", "message"),
    [
        (images(), images() * 4 - 2, r"\[0, 1\]"),
        (images(), images().mul(255), r"\[0, 1\]"),
        (images(), images().fill_(math.nan), r"\[0, 1\]"),
        (images(2), images(3), "one shape"),
        (images()[0], images()[0], "N, C, H, W"),
        (images().mul(255).to(torch.uint8), images(), "floating point"),
    ],
)
def test_wrong_input_is_refused(function: Pure, reconstruction: Tensor, original: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(reconstruction, original)


@pytest.mark.parametrize("metric", [Psnr(), Mse(), Ssim(), NormalisedMse()])
def test_broken_pixels_are_grey_and_counted(metric: ReconstructionMetric) -> None:
    original = images(3)
    broken, grey = original.clone(), original.clone()
    broken[1, :, 0, 0], grey[1, :, 0, 0] = math.nan, 0.5
    broken[2, 0, 1, 1], grey[2, 0, 1, 1] = -math.inf, 0.5
    score = metric.score(truth(broken, original))
    assert score.value == metric.score(truth(grey, original)).value
    assert score.details["non_finite_images"] == 2


@pytest.mark.parametrize("metric", [Psnr(), Mse(), Ssim(), NormalisedMse(), FeatMse()])
def test_no_images_is_none_with_the_reason(metric: ReconstructionMetric) -> None:
    score = metric.score(truth(images(0), images(0)))
    assert score.value is None
    assert "no images" in score.reason


def test_what_overflows_is_none_and_not_infinite() -> None:
    original = images(1).double()
    score = NormalisedMse().score(truth(original + 1e300, original))
    assert score.value is None
    assert "not finite" in score.reason
