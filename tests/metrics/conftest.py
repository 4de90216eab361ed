from __future__ import annotations

from leakboard.core.vision import torchvision

torchvision()  # torchmetrics imports it by itself, which beside a CPU build of torch works only after this
