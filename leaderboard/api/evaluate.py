"""Running a suite: `lb.evaluate`, and what the command `run` stands on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.errors import UserError, unknown_name
from leakboard.core.files import sweep
from leakboard.leaderboard.api.checks import (
    DeviceName,
    ExecutorName,
    device_name,
    executor_name,
    gpu_share,
    path_of,
    plugin_paths,
    seconds_between,
    seed_list,
    weights_file,
    worker_count,
)
from leakboard.leaderboard.api.given import Given, attack_columns, choose, defense_rows
from leakboard.leaderboard.api.published import board_of
from leakboard.leaderboard.api.run import Run, open_run
from leakboard.leaderboard.cells.fork_server import start_fork_server
from leakboard.leaderboard.engine.engine import Engine, Report
from leakboard.leaderboard.engine.executors.base import Executor, Running
from leakboard.leaderboard.engine.executors.local import LocalExecutor
from leakboard.leaderboard.engine.progress import Progress
from leakboard.leaderboard.engine.schedule import estimate_ours
from leakboard.leaderboard.engine.state import only_engine, running_trainings
from leakboard.leaderboard.engine.store import prune
from leakboard.leaderboard.planning.jobs import CHECKPOINT_SECONDS
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan, select
from leakboard.leaderboard.planning.run_folder import save_run
from leakboard.leaderboard.planning.skips import refuse_only_skips
from leakboard.leaderboard.planning.whole_run import with_kept
from leakboard.leaderboard.publishing.on_board import lay_out, on_board, refuse_unknown_defenses, suite_of
from leakboard.leaderboard.publishing.submit import Published
from leakboard.leaderboard.ranking.goal_ranking import headline
from leakboard.suites.schema import Suite, load_suite, parse_suite


@dataclass(frozen=True)
class Prepared:
    """A suite that was checked and planned, and how it will be run; nothing is computed yet.

    `plan` is what will be computed. `whole` is what the folder's tables will show: the same, and what is there already.
    """

    plan: Plan
    whole: Plan
    folder: Path
    workers: int
    executor: ExecutorName
    gpus_per_cell: float
    retry_failed: bool
    keep_transcripts: bool = False
    board: Published | None = None

    def run(self, *, progress: bool = True) -> Run:
        """Compute what is not there yet, and return the results; `evaluate` is `prepare` and this."""
        compute(self, progress=progress)
        return open_run(self.folder)


def evaluate(
    defense: Given | Iterable[Given] | None = None,
    attack: Given | Iterable[Given] | None = None,
    suite: str | Path | Mapping[str, Any] | Suite = "quick",
    *,
    on: str | Path | None = None,
    data: str = "",
    out: str | Path | None = None,
    seeds: int | Iterable[int] | None = None,
    workers: int | None = None,
    progress: bool = True,
    plugins: str | Path | Iterable[str | Path] = (),
    executor: ExecutorName = "local",
    gpus_per_cell: float = 0.0,
    device: DeviceName = "cpu",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    retry_failed: bool = False,
    fresh_keys: bool = False,
    keep_transcripts: bool = False,
    lpips_weights: str | Path = "",
    download: bool = False,
) -> Run:
    """Run a suite and return its results: train, attack, score. What is there already is not computed again.

    Args:
        defense: one or several defenses: a name, a Python file, a class or an instance. Only these and the control
            are computed; what the folder holds of the other rows stays in its tables. Without it, all defenses run.
        attack: the same for attacks; the prior stays, because a reconstruction means nothing without it.
        suite: the name of a suite, a YAML file, or its settings as a mapping.
        on: a published board, by name or folder: its trainings are replayed and attacked, and nothing is trained
            (docs/snapshots.md). `suite` is not used then.
        data: with `on`, the location of the data, such as `npz:FILE`.
        out: folder of the run; `runs/<suite>` without it, or `runs/on-<board>`.
        seeds: this seed or these seeds instead of the suite's.
        workers: jobs at once; one per core without it.
        progress: whether progress is shown on stderr.
        plugins: a file or files with plugins of any kind; their defenses and attacks join the suite.
        executor: `local`, or `ray` for a Ray cluster (docs/executors.md).
        gpus_per_cell: with `ray`, the share of a GPU that a cell takes.
        device: where trainings and attacks compute.
        checkpoint_seconds: seconds between two snapshots of a training, from which it goes on after a kill.
        retry_failed: compute failed, crashed and timed-out cells again.
        fresh_keys: keys and draws from the system instead of the seed.
        keep_transcripts: keep what was sent in observed rounds, even if it can be replayed in seconds.
        lpips_weights: file with the AlexNet weights for LPIPS; without it, those that `leakboard lpips` has kept.
        download: whether data sets and weights may be downloaded.

    Returns:
        The run. A cell that failed is part of it: see `Run.complaints`.

    Raises:
        UserError: in one sentence, where something that was given cannot be used; nothing is computed then.

    Example::

        import leakboard as lb

        run = lb.evaluate("my_defense.py", suite="quick")
        run.scoreboard()
    """
    return prepare(
        defense,
        attack,
        suite,
        on=on,
        data=data,
        out=out,
        seeds=seeds,
        workers=workers,
        plugins=plugins,
        executor=executor,
        gpus_per_cell=gpus_per_cell,
        device=device,
        checkpoint_seconds=checkpoint_seconds,
        retry_failed=retry_failed,
        fresh_keys=fresh_keys,
        keep_transcripts=keep_transcripts,
        lpips_weights=lpips_weights,
        download=download,
    ).run(progress=progress)


def prepare(
    defense: Given | Iterable[Given] | None = None,
    attack: Given | Iterable[Given] | None = None,
    suite: str | Path | Mapping[str, Any] | Suite = "quick",
    *,
    on: str | Path | None = None,
    data: str = "",
    out: str | Path | None = None,
    seeds: int | Iterable[int] | None = None,
    workers: int | None = None,
    plugins: str | Path | Iterable[str | Path] = (),
    executor: ExecutorName = "local",
    gpus_per_cell: float = 0.0,
    device: DeviceName = "cpu",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    retry_failed: bool = False,
    fresh_keys: bool = False,
    keep_transcripts: bool = False,
    lpips_weights: str | Path = "",
    download: bool = False,
) -> Prepared:
    """Check and plan a run without computing anything; the arguments are those of `evaluate`.

    Only a class of a notebook or script is written down, into `plugins/` of the run's folder. `Prepared.run` goes on.
    """
    where = executor_name(executor)
    computes, share = device_name(device, where), gpu_share(gpus_per_cell, where)
    count, wanted, own = worker_count(workers), seed_list(seeds), plugin_paths(plugins)
    given = None if out is None else path_of("out", out)
    files = [*registry.installed_files(), *own]
    for file in files:
        registry.load_file(file)
    board = None if on is None else board_of(on)
    asked = _suite(suite) if board is None else suite_of(board, data)
    folder = given or Path("runs") / (asked.name if board is None else f"on-{asked.name}")
    rows = choose("defense", defense, folder, [row.title for row in asked.defenses])
    columns = choose("attack", attack, folder, [column.title for column in asked.attacks])
    added = {
        "defenses": (*asked.defenses, *defense_rows(rows)),
        "attacks": (*asked.attacks, *attack_columns(columns)),
    }
    chosen = select(asked.model_copy(update=added), rows.labels, columns.labels, wanted, own)
    files += [*rows.files, *columns.files]
    options = Options(
        run=folder,
        device=computes,
        plugin_files=tuple(dict.fromkeys(str(Path(file).resolve()) for file in files)),
        lpips_weights=weights_file(lpips_weights),
        download=download,
        fresh_keys=fresh_keys,
        checkpoint_seconds=seconds_between(checkpoint_seconds),
    )
    if board is not None:
        plan, whole = _on_board(board, asked, chosen, options, (rows.labels, columns.labels))
        return Prepared(plan, whole, folder, count, where, share, retry_failed, keep_transcripts, board)
    plan = make_plan(chosen, options)
    refuse_only_skips(plan.cells)
    narrowed = bool(rows.labels or columns.labels or wanted)
    whole = with_kept(plan, asked, options) if narrowed else plan
    return Prepared(plan, whole, folder, count, where, share, retry_failed, keep_transcripts)


def _on_board(
    board: Published, asked: Suite, chosen: Suite, options: Options, named: tuple[Sequence[str], Sequence[str]]
) -> tuple[Plan, Plan]:
    """The plan of new attacks on published trainings, and what the folder will show.

    `asked` is the suite of the board, `chosen` what of it is wanted. `named` are the named defenses and attacks.
    """
    known = [row.title for row in asked.defenses]
    for name in named[0]:
        if name not in known:
            raise unknown_name(f"defense on the board {asked.name}", name, known)
    extra = [column.title for column in chosen.attacks if column.title not in {one.title for one in asked.attacks}]
    labels = {*named[1], *extra}
    if not labels:
        raise UserError("A published board is attacked: name the attack, such as `--attack mine.py`.")
    if options.fresh_keys:
        raise UserError("A published training has the keys of its seed: fresh keys need a training of their own.")
    refuse_unknown_defenses(board, [row.title for row in chosen.defenses])
    plan, whole = on_board(make_plan(chosen, options), board, labels, asked)
    refuse_only_skips(plan.cells)
    return plan, whole


def compute(prepared: Prepared, *, progress: bool = True) -> Report:
    """Compute what is not there yet; where somebody else computes in the same folder, say so and do nothing.

    Transcripts that can be replayed are removed at the end, unless they are to be kept.
    """
    report = _compute(prepared, progress)
    if not prepared.keep_transcripts:
        with suppress(UserError, OSError):  # somebody else has begun to work there, or nothing can be removed
            prune(prepared.folder)
    return report


def _compute(prepared: Prepared, progress: bool) -> Report:
    plan, folder = prepared.plan, prepared.folder
    _refuse_unwritable(folder)
    with only_engine(folder):
        try:
            for part in (folder, folder / "records", folder / "trainings"):
                sweep(part)
            save_run(folder, prepared.whole)
            if prepared.board is not None:
                lay_out(prepared.whole, plan, prepared.board)
        except OSError as error:
            raise UserError(
                f"The run cannot be written to {folder}: {error.strerror}; `out` names another folder."
            ) from None
        executor = _executor(prepared)
        shown = Progress(sys.stderr if progress else None, partial(_how_far, folder))
        engine = Engine(plan, executor, shown.tell, prepared.retry_failed, headline)
        there = f"{len(plan.cells)} cells, {engine.report.kept} already there"
        shown.begin(f"{plan.suite.name}: {there}, {executor.slots} workers")
        try:
            return _run(engine, prepared)
        finally:
            shown.end()


def _how_far(folder: Path, running: Running) -> str:
    """The round of a running training, for the progress bar; nothing for a cell."""
    key = running.job.training_key
    found = running_trainings(folder, {key: running.since}) if running.job.cell is None else {}
    return found[key].words() if key in found else ""


def _run(engine: Engine, prepared: Prepared) -> Report:
    """Let the engine work, the longest jobs first."""
    if not engine.total:
        return engine.run()
    with _main_without_file():
        start_fork_server(prepared.folder)  # it takes seconds to load torch; meanwhile the costs are estimated
        seconds = estimate_ours(prepared.plan)
        with suppress(OSError):  # only `status` reads them
            save_run(prepared.folder, prepared.whole, seconds)
        engine.order(seconds)
        return engine.run()


@contextmanager
def _main_without_file() -> Iterator[None]:
    """Worker processes must not run the user's script again, which `multiprocessing` makes them do by default."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    main.__dict__.pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


def _suite(given: str | Path | Mapping[str, Any] | Suite) -> Suite:
    if isinstance(given, Suite):
        return given
    if isinstance(given, Mapping):
        return parse_suite(given, "The suite")
    return load_suite(str(given))


def _executor(prepared: Prepared) -> Executor:
    """Where the jobs run."""
    limit = prepared.plan.suite.memory_limit
    if prepared.executor == "ray":
        from leakboard.leaderboard.engine.executors.cluster import RayExecutor

        return RayExecutor(prepared.workers, limit, prepared.gpus_per_cell)
    return LocalExecutor(prepared.workers or cores(), limit)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse_unwritable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be written to: {error.strerror}; `out` names another.") from None
