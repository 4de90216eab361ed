"""Loads a dataset: read, checked, and with the requested label noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import Dataset, ImagePool

MIN_IMAGES = 10
MIN_CLASSES = 2


def load_pool(dataset: Dataset) -> ImagePool:
    """The dataset's images, checked; `label_noise` is applied to all images outside the official test set."""
    pool = dataset.read()
    fault = find_fault(pool)
    if fault:
        raise UserError(f"The data set '{dataset.name}' cannot be used: {fault}.")
    if dataset.label_noise == 0:
        return pool
    seed = derive_seed("label-noise", dataset.name, dataset.label_noise)
    return pool.with_labels(add_label_noise(pool, dataset.label_noise, seed))


def find_fault(pool: ImagePool) -> str | None:
    """What is wrong with a pool (what is needed, what was given), or None."""
    count = len(pool.labels)
    if pool.pixels.dtype != torch.uint8 or pool.pixels.ndim != 4 or len(pool.pixels) != count:
        given = f"{pool.pixels.dtype} {tuple(pool.pixels.shape)}"
        return f"pixels must be uint8 (N, C, H, W), one for each of {count} labels; given: {given}"
    for what, tensor, dtype in (
        ("labels", pool.labels, torch.int64),
        ("is_test", pool.is_test, torch.bool),
        ("groups", pool.groups, torch.int64),
    ):
        if tensor is not None and (tensor.dtype != dtype or tensor.shape != (count,)):
            return f"{what} must be {dtype} ({count},); given: {tensor.dtype} {tuple(tensor.shape)}"
    train = pool.labels[~pool.is_test]
    if len(train) < MIN_IMAGES:
        return f"at least {MIN_IMAGES} training images are needed; given: {len(train)}"
    if int(pool.labels.min()) < 0 or int(pool.labels.max()) >= pool.classes:
        given = f"{int(pool.labels.min())} to {int(pool.labels.max())}"
        return f"labels must be 0 to {pool.classes - 1}, one for each class name; given: {given}"
    seen = len(set(train.tolist()))
    if seen < MIN_CLASSES:
        return f"at least {MIN_CLASSES} classes of training images are needed; given: {seen}"
    return None


def add_label_noise(pool: ImagePool, share: float, seed: int) -> Tensor:
    """Labels (N,) of which round(share · training images) are replaced by a uniformly random *other* class.

    Test labels are not changed. Models must memorise such labels to fit them, which membership attacks exploit
    (Zhang et al. 2017, Understanding Deep Learning Requires Rethinking Generalization).
    """
    random = np.random.default_rng(seed)
    train = torch.nonzero(~pool.is_test).squeeze(1)
    count = round(share * len(train))
    chosen = train[torch.from_numpy(random.permutation(len(train))[:count])]
    # adding 1 to K-1, modulo K, reaches every other class with equal probability and never the same one
    steps = torch.from_numpy(random.integers(1, pool.classes, size=count))
    labels = pool.labels.clone()
    labels[chosen] = (labels[chosen] + steps) % pool.classes
    return labels
