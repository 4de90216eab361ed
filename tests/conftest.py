"""What makes every test give the same answer on a busy machine as on an idle one, and in any order.

- Hypothesis draws the same examples each time and knows no deadline and no health check that measures time.
- What can be computed again is kept in the checkout, away from the user's own cache.
- Global random numbers start from one seed in each test: which tests ran before, and in which worker, does not matter.
- Torch has one thread, here and in every process that a test starts, as in a cell: sums over several threads differ in
  their last bits.
- Processes of replays and of runs come from one fork server, which has loaded what both need.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
# first of all, since modules ask once
os.environ.setdefault("LEAKBOARD_CACHE", str(ROOT / ".cache"))
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)

settings.register_profile(
    "leakboard", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("leakboard")


@pytest.fixture(autouse=True)
def _one_seed_and_one_thread() -> None:
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The fork server as a run starts it. A process has one: started by a replay, which needs less, it would let every
    cell of every later run load the rest by itself."""
    from leakboard.leaderboard.cells.fork_server import start_fork_server

    start_fork_server(tmp_path_factory.mktemp("fork-server"))
