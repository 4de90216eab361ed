"""`LEAKBOARD_FUZZ_EXAMPLES=2000 python -m tests.fuzz`: all fuzz tests in one process, with the number of examples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "-p", "no:cacheprovider", *sys.argv[1:]]))
