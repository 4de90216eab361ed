"""What the commands do: each calls the Python API and prints what it returns."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from leakboard.core import registry
from leakboard.core.terminal import plain, terminal_width
from leakboard.leaderboard.api.evaluate import Prepared, compute, cores, prepare
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cli.options import (
    Asked,
    CheckOptions,
    CompareOptions,
    ListOptions,
    NewOptions,
    ReportOptions,
    RunOptions,
    ShowOptions,
    StatusOptions,
    SubmitOptions,
    TableOptions,
    VerifyOptions,
)
from leakboard.leaderboard.cli.parser import program
from leakboard.leaderboard.planning.estimate import estimate
from leakboard.leaderboard.tables.formats import Format, find_format, to_terminal
from leakboard.leaderboard.tables.table import Table


def do(asked: Asked) -> int:
    """Do a command; returns the exit code."""
    if isinstance(asked, TableOptions | ReportOptions | CompareOptions | SubmitOptions):
        for file in asked.plugin:
            registry.load_file(file)
    match asked:
        case RunOptions():
            return run(asked)
        case StatusOptions():
            print(open_run(asked.out).status())
            return 0
        case TableOptions():
            return table(asked)
        case ReportOptions():
            print(f"page: {open_run(asked.out).write_page()}")
            return 0
        case ShowOptions():
            return show(asked)
        case NewOptions():
            return new(asked)
        case CheckOptions():
            return check(asked)
        case CompareOptions():
            return compare(asked)
        case SubmitOptions():
            return submit(asked)
        case VerifyOptions():
            return verify(asked)
        case ListOptions():
            raise AssertionError("main lists, since that needs nothing of what is imported here")


def run(asked: RunOptions) -> int:
    """`run`: do a suite, print its tables, write its page; 1 where a cell did not work."""
    prepared = prepare(
        asked.defense,
        asked.attack,
        asked.suite,
        out=asked.out,
        seeds=asked.seed,
        workers=asked.workers,
        plugins=asked.plugin,
        executor=asked.executor,
        gpus_per_cell=asked.gpus_per_cell,
        device=asked.device,
        retry_failed=asked.retry_failed,
        fresh_keys=asked.fresh_keys,
        lpips_weights=asked.lpips_weights,
        download=asked.download,
    )
    if asked.dry_run:
        _print_plan(prepared)
        return 0
    report = compute(prepared)
    opened = open_run(prepared.folder)
    for ranking in opened.tables():
        print(_for_terminal(ranking), end="\n\n")
    for line in opened.complaints():
        print(line)
    if report.unwritten:
        print(f"{report.unwritten} cells have no record, since it could not be written: the same command tries again.")
    sys.stdout.flush()
    print(f"page: {opened.page if opened.has_page() else opened.write_page()}")
    return 1 if report.broken else 0


def _print_plan(prepared: Prepared) -> None:
    plan, workers = prepared.plan, prepared.workers or cores()
    guess = estimate(plan)
    print(f"Suite {plan.suite.name}: {len(plan.trainings)} trainings, {len(plan.cells)} cells")
    for job in (*plan.trainings, *plan.cells):
        there = job.record_file.exists() if job.cell is not None else job.training_folder.is_dir()
        seconds = guess.get(job.key or job.training_key)
        told = "?" if seconds is None else f"{seconds:.1f}"
        print(f"  {told:>8} s  {job.title}{'  (already there)' if there else ''}")
    print(f"About {sum(guess.values()) / workers / 60:.1f} minutes with {workers} workers, if nothing were there yet.")


def table(asked: TableOptions) -> int:
    """`table`: print the tables of a run."""
    form = find_format(asked.format) if asked.format else None
    opened = open_run(asked.out)
    tables = opened.tables(all=asked.all, phases=asked.phases, paper=asked.paper, target=asked.target)
    _print_warning(opened.warning, form)
    _print_tables(tables, form)
    if opened.missing:
        count = f"{opened.missing} of {len(opened.jobs)}"
        print(f"{count} cells are not there yet: run the suite to go on.", file=sys.stderr)
        for title in opened.untabled():
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
        print("\n\n".join(map(_for_terminal, tables)))
    else:
        print(form.render(tables), end="")


def _for_terminal(one: Table) -> str:
    return to_terminal(one, terminal_width(), colour=sys.stdout.isatty())


def show(asked: ShowOptions) -> int:
    """`show`: one record, readable, with its images."""
    from leakboard.leaderboard.api.show import show as text_of

    print(text_of(asked.record, colour=sys.stdout.isatty()))
    return 0


def new(asked: NewOptions) -> int:
    """`new`: write the skeleton of a plugin and say what to do with it."""
    from leakboard.leaderboard.api.scaffold import new_plugin

    path = new_plugin(asked.kind, asked.plugin, Path(asked.to))
    command = program() if program() == "leakboard" else f".venv/bin/python {program()}"
    print(f"{path}: change it, then")
    print(f"  {command} check {path}")
    print(f"  {command} run --plugin {path}")
    return 0


def check(asked: CheckOptions) -> int:
    """`check`: one line per rule of the contract, for every plugin of a file; 1 where a rule is broken."""
    found = registry.load_file(asked.plugin)
    from leakboard.contract import check_plugin

    outcomes: Counter[str] = Counter()
    for entry in found:
        print(f"{entry['kind']} '{entry['name']}'", flush=True)
        for result in check_plugin(registry.load(entry["kind"], entry["name"])):
            print(f"  {plain(result.line)}", flush=True)
            outcomes[result.outcome] += 1
    counts = f"{outcomes['ok']} ok, {outcomes['broken']} BROKEN, {outcomes['not applicable']} not applicable"
    print(f"{outcomes.total()} rules: {counts}. The contract {'does not hold' if outcomes['broken'] else 'holds'}.")
    return 1 if outcomes["broken"] else 0


def compare(asked: CompareOptions) -> int:
    """`compare`: two runs cell by cell, and every setting in which they differ."""
    from leakboard.leaderboard.api.published import compare as compared

    form = find_format(asked.format) if asked.format else None
    one, two = open_run(asked.first), open_run(asked.second)
    for opened, name in ((one, "A"), (two, "B")):
        _print_warning(opened.warning, form, f"{name}: ")
    _print_tables(compared(one, two), form)
    return 0


def submit(asked: SubmitOptions) -> int:
    """`submit`: collect a run's records for publishing."""
    from leakboard.leaderboard.api.published import submit as publish

    target, count = publish(asked.run, asked.to, allow_dirty=asked.allow_dirty)
    print(f"{count} records are in {target}: propose them as a change to the repository (docs/publishing.md).")
    for line in open_run(asked.run).complaints():
        print(f"published as it is: {line}")
    return 0


def verify(asked: VerifyOptions) -> int:
    """`verify`: compute records again; 1 where one differs by more than its tolerance."""
    from leakboard.leaderboard.api.published import verify as computed_again
    from leakboard.leaderboard.publishing.submit import read_note

    for folder in dict.fromkeys(Path(name).parent for name in asked.records):
        _print_warning(read_note(folder), None)
    worst = 0
    outcomes = computed_again(
        asked.records, data=asked.data, plugins=asked.plugin, lpips_weights=asked.lpips_weights, mark=asked.mark
    )
    for found in outcomes:
        differs = "; ".join(found.differences)
        print(f"{found.file.name}: {f'differs: {differs}' if differs else 'verified'}")
        if found.note is not None:
            print(f"  noted in {found.note.name}")
        worst = max(worst, int(bool(differs)))
    return worst
