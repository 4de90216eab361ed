"""Shared makings of the core tests."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from leakboard.core.registry import importing_us


def in_fresh_process(code: str) -> Any:
    """Run code that prints one JSON value as its last line, in a Python that has imported nothing of ours."""
    done = subprocess.run([sys.executable, "-c", code], env=importing_us(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
