"""What the commands do, behind the command line."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from torch import Tensor, set_num_threads

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.files import sweep
from leakboard.core.terminal import plain, terminal_width
from leakboard.leaderboard.cells.attack_process import opened_files
from leakboard.leaderboard.cells.fork_server import start_fork_server
from leakboard.leaderboard.cli.finished import Before
from leakboard.leaderboard.cli.scaffold import new_plugin
from leakboard.leaderboard.engine.engine import Engine, Report
from leakboard.leaderboard.engine.executors.base import Executor
from leakboard.leaderboard.engine.executors.local import LocalExecutor
from leakboard.leaderboard.engine.progress import Progress
from leakboard.leaderboard.engine.schedule import Guess
from leakboard.leaderboard.engine.state import only_engine
from leakboard.leaderboard.engine.status import describe
from leakboard.leaderboard.page.charts.collect import chart_classes
from leakboard.leaderboard.page.images import originals, reconstructions
from leakboard.leaderboard.page.page import write_page
from leakboard.leaderboard.page.pictures import ascii_picture
from leakboard.leaderboard.planning.estimate import estimate
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan, select
from leakboard.leaderboard.planning.run_folder import Run, open_run, read_record_file, save_run
from leakboard.leaderboard.publishing.compare import comparison
from leakboard.leaderboard.publishing.submit import PUBLISHED, mark_verified, open_any, read_note
from leakboard.leaderboard.publishing.submit import submit as publish
from leakboard.leaderboard.publishing.verify import verify as compute_again
from leakboard.leaderboard.ranking.leaderboards import untabled
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.formats import Format, find_format, to_terminal
from leakboard.leaderboard.tables.paper_tables import paper_tables
from leakboard.leaderboard.tables.phase_times import phase_tables
from leakboard.leaderboard.tables.table import Table
from leakboard.suites.schema import load_suite


def run(args: argparse.Namespace) -> int:
    """`run`: do a suite, print its table, write its page."""
    for file in args.plugin:
        registry.load_file(file)
    suite = select(load_suite(args.suite), args.defense, args.attack, args.seed, args.plugin)
    folder = Path(args.out or Path("runs") / suite.name)
    _check_share(args.gpus_per_cell, args.executor)
    _workers(args.workers)  # refused before anything is written
    options = Options(
        run=folder,
        device=_device(args.device, args.executor),
        plugin_files=tuple(str(Path(file).resolve()) for file in (*registry.installed_files(), *args.plugin)),
        lpips_weights=_weights(args.lpips_weights),
        download=args.download,
        fresh_keys=args.fresh_keys,
    )
    with opened_files() as data:
        plan = make_plan(suite, options)
    if args.dry_run:
        _print_plan(plan, _workers(args.workers))
        return 0
    before: Before = args.before.planned(data, _places(plan))
    _writable(folder)
    with only_engine(folder):
        done = _do(plan, folder, args)
    opened = open_run(folder)
    text = "".join(f"{to_terminal(ranking, terminal_width())}\n\n" for ranking in opened.rankings())
    text += "".join(f"{line}\n" for line in _broken(opened))
    if done.unwritten:
        text += f"{done.unwritten} cells have no record, since it could not be written: the same command tries again.\n"
    print(text, end="", flush=True)
    page = f"page: {_write_page(opened)}"
    print(page)
    code = 1 if done.broken else 0
    settled = not done.unwritten and not (args.retry_failed and done.broken)
    if settled and len(opened.records) == len(plan.cells):
        began = f"{suite.name}: {len(plan.cells)} cells, {len(plan.cells)} already there"
        before.remember(folder, began, text + page, code)
    return code


def _places(plan: Plan) -> set[str]:
    """The files and folders of this machine that the suite names: data and networks."""
    found = [{**job.locations.dataset, **job.locations.model} for job in plan.trainings]
    return {value for one in found for value in one.values() if isinstance(value, str)}


def _do(plan: Plan, folder: Path, args: argparse.Namespace) -> Report:
    """Compute what is not there yet."""
    try:
        for part in (folder, folder / "records", folder / "trainings"):
            sweep(part)
        save_run(folder, plan, {})
    except OSError as error:
        raise UserError(f"The run cannot be written to {folder}: {error.strerror}; --out names another.") from None
    executor = _executor(args, plan.suite.memory_limit)
    progress = Progress(sys.stderr)
    engine = Engine(plan, executor, progress.tell, args.retry_failed)
    there = f"{len(plan.cells)} cells, {engine.report.kept} already there"
    progress.begin(f"{plan.suite.name}: {there}, {executor.slots} workers")
    try:
        return _run(engine, plan, folder) if engine.total else engine.run()
    finally:
        progress.end()


def _run(engine: Engine, plan: Plan, folder: Path) -> Report:
    """Let the engine work, in the best order as soon as that is known."""
    start_fork_server(folder)
    chart_classes()  # loads matplotlib, which the page needs in the end, while the fork server is loading

    guess = Guess(plan)

    def estimated() -> dict[str, float] | None:
        seconds = guess.look()
        if seconds is not None:
            with suppress(OSError):  # only `status` reads them
                save_run(folder, plan, seconds)
        return seconds

    try:
        return engine.run(estimated)
    finally:
        guess.end()


def _executor(args: argparse.Namespace, memory_limit: float) -> Executor:
    """Where the jobs run."""
    if args.executor == "ray":
        from leakboard.leaderboard.engine.executors.cluster import RayExecutor

        return RayExecutor(_workers(args.workers) if args.workers else 0, memory_limit, args.gpus_per_cell)
    return LocalExecutor(_workers(args.workers), memory_limit)


def status(args: argparse.Namespace) -> int:
    """`status`: what a running or stopped run has done, and what is left."""
    print(describe(Path(args.out)))
    return 0


def table(args: argparse.Namespace) -> int:
    """`table`: print the tables of a run."""
    form = find_format(args.format) if args.format else None
    opened = open_any(Path(args.out))
    if args.paper:
        tables = paper_tables(opened.records, args.target)
    else:
        tables = phase_tables(opened.records) if args.phases else opened.rankings()
    if args.all:
        tables += [] if args.phases else phase_tables(opened.records)
        tables += cell_tables(opened.records)
    _print_warning(opened.warning, form)
    _print_tables(tables, form)
    missing = len(opened.jobs) - len(opened.records)
    if missing > 0:  # published records have no jobs here
        print(f"{missing} of {len(opened.jobs)} cells are not there yet: run the suite to go on.", file=sys.stderr)
        for title in untabled(opened.records, opened.waiting):
            print(f"No cell is there yet of: {title}.", file=sys.stderr)
    for note in opened.notes:
        print(note, file=sys.stderr)
    return 0


def _print_warning(text: str, form: Format | None, whose: str = "") -> None:
    """What is wrong with a whole board, before the tables; on the standard error where a program reads these."""
    mark = "" if form is None else form.comment
    for line in text.splitlines():
        print(f"{mark or ''}{whose}{line}", file=sys.stderr if mark is None else sys.stdout)
    if text and mark is not None:
        print()


def _print_tables(tables: list[Table], form: Format | None) -> None:
    if form is None:
        print("\n\n".join(to_terminal(one, terminal_width()) for one in tables))
    else:
        print(form.render(tables), end="")


def report(args: argparse.Namespace) -> int:
    """`report`: write the page of a run."""
    print(f"page: {_write_page(open_any(Path(args.out)))}")
    return 0


def show(args: argparse.Namespace) -> int:
    """`show`: one record, readable, with its images."""
    path = Path(args.record)
    record = read_record_file(path)
    opened = open_run(path.parent.parent) if (path.parent.parent / "run.json").is_file() else None
    print(_describe(record))
    truth = originals(record, opened.job_of(record) if opened else None)
    rebuilt = reconstructions(record, path.parent, truth)
    colour = sys.stdout.isatty()
    for title, images in (("original", truth), ("reconstruction", rebuilt)):
        for number in range(0 if images is None else len(images)):
            assert images is not None
            print(f"\n{title} {number}\n{ascii_picture(images[number], colour=colour)}")
    return 0


def new(args: argparse.Namespace) -> int:
    """`new`: write the skeleton of a plugin and say what to do with it."""
    path = new_plugin(args.kind, args.name, Path(args.to))
    print(f"{path}: change it, then")
    print(f"  .venv/bin/python run_benchmark.py check {path}")
    print(f"  .venv/bin/python run_benchmark.py run --plugin {path}")
    return 0


def check(args: argparse.Namespace) -> int:
    """`check`: the contract tests of all plugins, on those of one file."""
    found = registry.load_file(args.plugin)
    try:
        import pytest  # noqa: F401
    except ImportError:
        raise UserError("`check` needs the development tools: `make test` installs them.") from None
    print("checking " + ", ".join(f"{entry['kind']} '{entry['name']}'" for entry in found), flush=True)
    command = [sys.executable, "-m", "pytest", "tests/contract", "-p", "no:cacheprovider", "--no-header"]
    command += ["-o", "empty_parameter_set_mark=skip"]  # a file need not hold every kind of plugin
    env = {**os.environ, "LEAKBOARD_CHECK": str(Path(args.plugin).resolve())}
    code = subprocess.run(command, cwd=registry.ROOT, env=env).returncode
    print("The contract holds." if code == 0 else "The contract does not hold: see above.")
    return 1 if code else 0


def compare(args: argparse.Namespace) -> int:
    """`compare`: two runs cell by cell, and every setting in which they differ."""
    form = find_format(args.format) if args.format else None
    one, two = (open_any(Path(folder)) for folder in (args.first, args.second))
    for opened, name in ((one, "A"), (two, "B")):
        _print_warning(opened.warning, form, f"{name}: ")
    _print_tables(comparison(one.records, two.records), form)
    return 0


def submit(args: argparse.Namespace) -> int:
    """`submit`: collect a run's records for publishing."""
    target, count = publish(Path(args.run), Path(args.to) if args.to else PUBLISHED, args.allow_dirty)
    print(f"{count} records are in {target}: propose them as a change to the repository (docs/publishing.md).")
    for line in _broken(open_run(Path(args.run))):
        print(f"published as it is: {line}")
    return 0


def verify(args: argparse.Namespace) -> int:
    """`verify`: compute records again; 1 where one differs by more than its tolerance."""
    for file in args.plugin:
        registry.load_file(file)
    worst = 0
    for folder in dict.fromkeys(Path(name).parent for name in args.records):
        _print_warning(read_note(folder), None)
    for name in args.records:
        verdict = compute_again(Path(name), args.data, _weights(args.lpips_weights), args.plugin)
        found = verdict.differences()
        print(f"{Path(name).name}: {'differs: ' + '; '.join(found) if found else 'verified'}")
        if args.mark and not found:
            print(f"  noted in {mark_verified(Path(name), verdict).name}")
        worst = max(worst, int(bool(found)))
    return worst


def _describe(record: Record) -> str:
    cell = record.cell
    lines = [
        f"{cell.attack.label} on {cell.training.defense.label}",
        f"  data      {cell.training.dataset.label}, model {cell.training.model.label}, seed {cell.training.seed}",
        f"  threat    {cell.threat}" + (f", {cell.moment} round" if cell.moment else ""),
        *([f"  batch     {cell.batch_size} records per gradient"] if cell.goal == "reconstruction" else []),
        f"  status    {record.status}" + (f": {record.reason}" if record.reason else ""),
    ]
    lines += [f"  flag      {flag}" for flag in record.flags]
    if record.scores and all_targets(record):
        lines.append(f"  scores    over {all_targets(record)}" + _ranked_elsewhere(record))
    for name, score in record.scores.items():
        value = "–" if score.value is None else f"{score.value:.4f} {score.unit}".rstrip()
        lines.append(f"  {name:20} {value}" + (f"  ({score.reason})" if score.reason else ""))
    if record.training is not None and record.training.accuracy is not None:
        lines.append(f"  {'accuracy':20} {record.training.accuracy:.4f} after {record.training.rounds} rounds")
    if record.cost is not None:
        lines.append(f"  {'attack time':20} {record.cost.wall_seconds:.1f} s, {record.cost.peak_memory_mib:.0f} MiB")
    if record.provenance is not None:
        dirty = " (with uncommitted changes)" if record.provenance.dirty else ""
        lines.append(f"  {'made':20} {record.provenance.created}, commit {record.provenance.commit}{dirty}")
    text = "\n".join(lines) + (f"\n\n{record.traceback}" if record.traceback else "")
    return "\n".join(map(plain, text.split("\n")))  # whoever wrote the record must not steer this terminal


def _ranked_elsewhere(record: Record) -> str:
    """Why the rankings have another score of this cell; an audit's bound is the same in both."""
    return "" if record.cell.goal == "audit" else " (rankings: over the half on which the attack was not chosen)"


def _write_page(opened: Run) -> Path:
    set_num_threads(1)  # a few images at a time: two threads would only wait for each other

    def truth(record: Record) -> Tensor | None:
        return originals(record, opened.job_of(record))

    try:
        return write_page(
            opened.report_folder,
            title=f"LeakBoard: {opened.file.suite}",
            description=". ".join([opened.file.description, *opened.notes]),
            warning=opened.warning,
            boards=opened.boards(),
            tables=[*phase_tables(opened.records), *cell_tables(opened.records)],
            records=opened.records,
            originals=truth,
            reconstructions=lambda record: reconstructions(record, opened.records_folder, truth(record)),
            claims={name: str(entry.get("claim", "")) for name, entry in registry.entries("defense").items()},
        )
    except OSError as error:
        raise UserError(f"The page cannot be written to {opened.report_folder}: {error.strerror}.") from None


def _print_plan(plan: Plan, workers: int) -> None:
    guess = estimate(plan)
    print(f"Suite {plan.suite.name}: {len(plan.trainings)} trainings, {len(plan.cells)} cells")
    for job in (*plan.trainings, *plan.cells):
        there = job.record_file.exists() if job.cell is not None else job.training_folder.is_dir()
        seconds = guess.get(job.key or job.training_key)
        told = "?" if seconds is None else f"{seconds:.1f}"
        print(f"  {told:>8} s  {job.title}{'  (already there)' if there else ''}")
    print(f"About {sum(guess.values()) / workers / 60:.1f} minutes with {workers} workers, if nothing were there yet.")


def _broken(opened: Run) -> list[str]:
    """A line for every cell that did not work, and one for all attacks that found nothing to attack."""
    broken = [record for record in opened.records if record.status not in ("ok", "skipped")]
    lines = [f"{record.status}: {record.cell.slug}: {record.reason}" for record in broken]
    skipped = Counter(record.cell.attack.label for record in opened.records if record.status == "skipped")
    if skipped:
        attacks = ", ".join(f"{label} {count}" for label, count in sorted(skipped.items()))
        lines.append(f"skipped: {skipped.total()} cells, each with its reason on the page ({attacks})")
    return [plain(line) for line in lines]


def _check_share(share: float, executor: str) -> None:
    if share and executor != "ray":
        raise UserError("--gpus-per-cell needs --executor ray: on one machine, --workers says how many share a GPU.")
    if not 0 <= share <= 64:
        raise UserError(f"--gpus-per-cell must be from 0 to 64, such as 0.5 for two cells a GPU; given: {share:g}.")


def _device(name: str, executor: str) -> str:
    import torch

    if executor == "ray":  # which machines have one, the cluster knows
        return name
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this torch sees no CUDA device; use --device cpu or install a CUDA build.")
    return name


def _weights(path: str) -> str:
    if path and not Path(path).is_file():
        raise UserError(f"--lpips-weights: there is no file {path}.")
    return str(Path(path).resolve()) if path else ""


def _workers(given: int) -> int:
    if given < 0 or given > 1024:
        raise UserError(f"--workers must be from 1 to 1024; given: {given}.")
    return given or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else given or os.cpu_count() or 1


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be written to: {error.strerror}; --out names another.") from None
