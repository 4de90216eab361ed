"""No test asks a clock or an allocator: what they say depends on what else the machine does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from leakboard.core.registry import ROOT
from tests.leaderboard.runs import HANG

MODULES = {"time", "timeit", "tracemalloc", "resource", "datetime", "psutil"}
#: test file -> why it may still look at the time
ALLOWED = {
    "tests/leaderboard/runs.py": "`wait_until` gives up where something hangs, and takes all the time it needs else",
    "tests/leaderboard/cells/test_kills.py": "it kills at random moments of processor time; the results must be equal",
    "tests/leaderboard/engine/test_killed.py": "it kills at random moments; the records must be equal all the same",
}
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}


def faults(source: str) -> Iterator[str]:
    """What in a test's source depends on how busy the machine is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"imports {name.name}" for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield f"imports from {node.module}"
        elif isinstance(node, ast.Call):
            yield from _short_limits(node)


def _short_limits(call: ast.Call) -> Iterator[str]:
    """Limits in seconds that a busy machine may reach, given as `timeout=` or to `join` and `wait`; deadlines."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    given = {keyword.arg or "": keyword.value for keyword in call.keywords}
    limits = [given[key] for key in ("timeout", "seconds") if key in given]
    limits += call.args[:1] if name in ("join", "wait", "poll") else []
    for limit in limits:
        if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float) and limit.value < HANG:
            yield f"waits at most {limit.value} seconds"
    if name == "wait_for_timeout":
        yield "lets a page wait for a time"
    if isinstance(deadline := given.get("deadline"), ast.Constant) and deadline.value not in (None, 0.0):
        yield f"has a deadline of {deadline.value!r}"


def test_no_test_depends_on_how_busy_the_machine_is() -> None:
    found = {file: list(faults(source)) for file, source in FILES.items()}
    assert {file: why for file, why in found.items() if why and file not in ALLOWED} == {}
    assert {file for file in ALLOWED if not found.get(file)} == set()  # a reason that is no longer needed


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "def test():\n    from time import perf_counter",
        "process.join(20)",
        "subprocess.run(x, timeout=120)",
        "wait_until(x, seconds=60)",
        "page.wait_for_timeout(100)",
        "settings(deadline=200)",
    ],
)
def test_a_clock_in_a_test_is_found(source: str) -> None:
    assert len(list(faults(source))) == 1


def test_what_only_joins_texts_or_waits_for_a_hang_is_left_alone() -> None:
    source = "', '.join(x)\nprocess.join(HANG)\nsettings(deadline=None)\nrun(x, timeout=1800)\n"
    assert list(faults(source)) == []


def test_hypothesis_has_no_deadline_and_draws_the_same_examples_each_time() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert settings.default.derandomize
    assert HealthCheck.too_slow in settings.default.suppress_health_check


def test_a_test_without_cases_fails_at_collection(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"
