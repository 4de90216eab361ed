"""What makes every test give the same answer on a busy machine as on an idle one, and in any order.

- Hypothesis draws the same examples each time and knows no deadline and no health check that measures time.
- Global random numbers start from one seed in each test: which tests ran before, and in which worker, does not matter.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "leakboard", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("leakboard")


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002: the global state is what is meant
    torch.manual_seed(0)
