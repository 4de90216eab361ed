from __future__ import annotations

import pytest
import torch

from leakboard.core.vision import torchvision

torchvision()  # torchmetrics imports it by itself, which beside a CPU build of torch works only after this


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
