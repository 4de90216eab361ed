"""Tests run on one thread, as attacks do."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
