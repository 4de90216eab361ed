"""What the commands do: each calls the Python API and prints what it returns."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from shlex import quote

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.terminal import plain, shows_unicode, terminal_width
from leakboard.leaderboard.api.evaluate import compute, cores, prepare
from leakboard.leaderboard.api.run import Run, open_run
from leakboard.leaderboard.cli.options import (
    Asked,
    CheckOptions,
    CompareOptions,
    DataOptions,
    FiguresOptions,
    ListOptions,
    LpipsOptions,
    NewOptions,
    PruneOptions,
    RefreshOptions,
    ReportOptions,
    RunOptions,
    ShadowsOptions,
    ShowOptions,
    SiteOptions,
    StatusOptions,
    SubmitOptions,
    TableOptions,
    VerifyOptions,
)
from leakboard.leaderboard.cli.parser import complaint, program
from leakboard.leaderboard.cli.plan_text import plan_text
from leakboard.leaderboard.planning.whole_run import forgotten_plugins
from leakboard.leaderboard.tables.formats import Format, find_format, to_terminal
from leakboard.leaderboard.tables.marks import in_ascii
from leakboard.leaderboard.tables.table import Table


def do(asked: Asked) -> int:
    """Do a command; returns the exit code."""
    if isinstance(asked, TableOptions | ReportOptions | FiguresOptions | ShowOptions | CompareOptions | SubmitOptions):
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
        case RefreshOptions():
            return refresh(asked)
        case FiguresOptions():
            return figures(asked)
        case LpipsOptions():
            return lpips(asked)
        case DataOptions():
            return data(asked)
        case ShadowsOptions():
            return shadows(asked)
        case PruneOptions():
            return prune(asked)
        case SiteOptions():
            return site(asked)
        case ListOptions():
            raise AssertionError("main lists, since that needs nothing of what is imported here")


def run(asked: RunOptions) -> int:
    """`run`: do a suite, print its scoreboard, write its page; 1 where a cell did not work."""
    prepared = prepare(
        asked.defense,
        asked.attack,
        asked.suite,
        on=asked.on,
        data=asked.data,
        out=asked.out,
        seeds=asked.seed,
        workers=asked.workers,
        plugins=asked.plugin,
        executor=asked.executor,
        gpus_per_cell=asked.gpus_per_cell,
        device=asked.device,
        checkpoint_seconds=asked.checkpoint_seconds,
        retry_failed=asked.retry_failed,
        fresh_keys=asked.fresh_keys,
        keep_transcripts=asked.keep_transcripts,
        lpips_weights=asked.lpips_weights,
        download=asked.download,
    )
    if asked.dry_run:
        print(plan_text(prepared.plan, prepared.workers or cores()))
        return 0
    for file in forgotten_plugins(prepared.plan, prepared.folder):
        told = f"The last run in {prepared.folder} had --plugin {file}: without it, its parts leave the tables."
        print(plain(told), file=sys.stderr)
    report = compute(prepared)
    opened = open_run(prepared.folder)
    for one in opened.tables(scoreboard=not asked.all):
        print(_for_terminal(one))
    complaints = opened.complaints()
    if report.unwritten:
        lost = f"{report.unwritten} cells have no record, since it could not be written"
        complaints.append(f"{lost}: the same command tries again.")
    for line in complaints:
        print(line)
    sys.stdout.flush()
    print("\n".join(_what_next(opened)))
    if set(report.counts) == {"skipped"}:
        reasons = dict.fromkeys(f"{record.cell.attack.label}: {record.reason}" for record in opened.records)
        print(complaint(f"No attack could run, every cell was skipped: {'; '.join(reasons)}."), file=sys.stderr)
        return 1
    return 1 if report.broken else 0


def _command() -> str:
    """How this program is called."""
    return program() if program() == "leakboard" else f".venv/bin/python {program()}"


def _what_next(opened: Run) -> list[str]:
    """Three lines: the page, a defense of the user's own, the record behind a mark."""
    page = opened.page if opened.has_page() else opened.write_page()
    rows = [row for board in opened.scoreboards() for row in board.rows]
    example = next((row.defense for row in rows if any(cell.records for cell in row.cells.values())), "DEFENSE")
    return [
        f"page: {page}",
        f"your own defense: {_command()} new defense my-idea, then {_command()} run --plugin my_idea.py",
        f"behind a mark: {_command()} show {quote(example)} --out {quote(str(opened.folder))}",
    ]


def table(asked: TableOptions) -> int:
    """`table`: print the tables of a run."""
    form = find_format(asked.format) if asked.format else None
    opened = open_run(asked.out)
    tables = opened.tables(
        all=asked.all, phases=asked.phases, paper=asked.paper, target=asked.target, scoreboard=asked.scoreboard
    )
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
    return to_terminal(one, terminal_width(), colour=sys.stdout.isatty(), only_ascii=not shows_unicode(sys.stdout))


def show(asked: ShowOptions) -> int:
    """`show`: one record, readable, with its images; or what is behind the marks of a defense."""
    from leakboard.leaderboard.api.show import show as text_of

    colour = sys.stdout.isatty()
    if Path(asked.record).suffix == ".json" or Path(asked.record).exists():
        text = text_of(asked.record, colour=colour)
    else:
        text = open_run(asked.out).evidence(asked.record, asked.question, colour=colour)
    print(text if shows_unicode(sys.stdout) else "\n".join(map(in_ascii, text.split("\n"))))
    return 0


def new(asked: NewOptions) -> int:
    """`new`: write the skeleton of a plugin and say what to do with it."""
    from leakboard.leaderboard.api.scaffold import new_plugin

    path = new_plugin(asked.kind, asked.plugin, Path(asked.to))
    print(f"{path}: change it, then")
    print(f"  {_command()} check {path}")
    print(f"  {_command()} run --plugin {path}")
    return 0


def check(asked: CheckOptions) -> int:
    """`check`: one line per rule of the contract, for every plugin of a file; 1 where a rule is broken."""
    found = registry.load_file(asked.plugin)
    from leakboard.contract import check_plugin

    outcomes: Counter[str] = Counter()
    printed = StringIO()
    for entry in found:
        print(f"{entry['kind']} '{entry['name']}'", flush=True)
        results = iter(check_plugin(registry.load(entry["kind"], entry["name"])))
        while True:
            with redirect_stdout(printed):  # what a plugin prints must not bury the rules
                result = next(results, None)
            if result is None:
                break
            print(f"  {plain(result.line)}", flush=True)
            outcomes[result.outcome] += 1
    lines = printed.getvalue().count("\n")
    if lines:
        print(f"The plugin printed {lines} lines, which are not shown; in a run they are in its logs.")
    counts = f"{outcomes['ok']} ok, {outcomes['broken']} BROKEN, {outcomes['not applicable']} not applicable"
    print(f"{outcomes.total()} rules: {counts}. The contract {'does not hold' if outcomes['broken'] else 'holds'}.")
    return 1 if outcomes["broken"] else 0


def figures(asked: FiguresOptions) -> int:
    """`figures`: write the figures of a run as files for papers."""
    folder = Path(asked.to) if asked.to else Path(asked.out) / "figures"
    written = open_run(asked.out).save_figures(folder, **({"formats": asked.format} if asked.format else {}))
    print("\n".join(map(str, written)) or "This run has no figures yet: it has no records.")
    return 0


def lpips(asked: LpipsOptions) -> int:
    """`lpips`: get the weights that LPIPS needs, or say where they are."""
    from leakboard.metrics.building_blocks.weights_archive import get_weights

    file = get_weights(asked.source, asked.download)
    print(f"The LPIPS weights are verified and kept in {file}: `run` uses them by itself.")
    return 0


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
    from leakboard.leaderboard.publishing.changes import read_changes
    from leakboard.leaderboard.publishing.groups import unfinished, words
    from leakboard.leaderboard.publishing.replays import MOST_BOARD, REPLAYS

    target, count = publish(asked.run, asked.to, allow_dirty=asked.allow_dirty)
    if not count:
        print(f"All records of the run are in {target} already: nothing was changed.")
        return 0
    size = sum(path.stat().st_size for path in (target / REPLAYS).rglob("*") if path.is_file())
    change = read_changes(target)[-1]
    print(f"{count} records went to {target}, which is now version {change.version}: propose them as a change to the")
    print(f"repository (docs/publishing.md). Snapshots of its trainings: {size / 1e6:.1f} of {MOST_BOARD / 1e6:g} MB.")
    left = unfinished(open_run(asked.run).opened)
    if left:
        print(f"left out, because cells are not there yet: {words(left)}")
    for line in open_run(target).opened.remarks:
        print(line)
    for rank in change.ranks if change.version > 1 else ():
        print(f"rank changed: {plain(rank.line)}")
    for line in open_run(asked.run).complaints():
        print(f"published as it is: {line}")
    return 0


def refresh(asked: RefreshOptions) -> int:
    """`refresh`: a new attack on everything that a board has; its records go to the board, with a new version."""
    from leakboard.leaderboard.api.published import board_of

    opened = board_of(asked.board)
    board = opened.folder.resolve()
    if board.name != opened.file.suite:
        raise UserError(f"The folder of the board {opened.file.suite} must have its name; given: {board.name}.")
    prepared = prepare(
        attack=asked.attack,
        on=board,
        data=asked.data,
        out=asked.out,
        workers=asked.workers,
        plugins=asked.plugin,
        lpips_weights=asked.lpips_weights,
    )
    if compute(prepared).broken:
        print("\n".join(open_run(prepared.folder).complaints()))
        print(complaint("Some cells did not work, so nothing was submitted."), file=sys.stderr)
        return 1
    return submit(SubmitOptions(run=str(prepared.folder), to=str(board.parent), allow_dirty=asked.allow_dirty))


def verify(asked: VerifyOptions) -> int:
    """`verify`: compute records again; 1 where one differs by more than its tolerance."""
    from leakboard.leaderboard.api.published import verify as computed_again
    from leakboard.leaderboard.publishing.submit import read_note

    given = map(Path, asked.records)
    for folder in dict.fromkeys(path if path.is_dir() else path.parent for path in given):
        _print_warning(read_note(folder), None)
    worst = 0
    outcomes = computed_again(
        asked.records,
        data=asked.data,
        plugins=asked.plugin,
        lpips_weights=asked.lpips_weights,
        mark=asked.mark,
        depth=asked.depth,
    )
    how = "verified" if asked.depth == "training" else "attack verified (the training was replayed, not run again)"
    for found in outcomes:
        differs = "; ".join(found.differences)
        print(f"{found.file.name}: {f'differs: {differs}' if differs else how}")
        if found.note is not None:
            print(f"  noted in {found.note.name}")
        worst = max(worst, int(bool(differs)))
    return worst


def data(asked: DataOptions) -> int:
    """`data get`: get a data set; 1 where a published board was made with other data."""
    from leakboard.leaderboard.api.data import get_data

    folder, checks = get_data(asked.dataset, archive=asked.archive, to=asked.to)
    print(f"{asked.dataset} is whole in {folder}.")
    for check_ in checks:
        print(check_.line)
    if not checks:
        print("No published board was made with it, so there is no digest to compare with.")
    return 0 if all(check_.agrees for check_ in checks) else 1


def shadows(asked: ShadowsOptions) -> int:
    """`shadows`: publish the shadow models that a run's attacks used, or take those of a board into the cache."""
    from leakboard.leaderboard.api.published import get_shadows, publish_shadows

    wanted = 2 if asked.action == "publish" else 1
    if len(asked.folders) != wanted:
        form = "publish RUN BOARD" if wanted == 2 else "get BOARD"
        raise UserError(f"Write `leakboard shadows {form}`; given: {len(asked.folders)} folders.")
    if asked.action == "publish":
        pools, models = publish_shadows(*asked.folders)
        print(f"{models} shadow models of {pools} pools are on the board.")
        return 0
    pools, models = get_shadows(*asked.folders)
    print(f"{models} shadow models of {pools} pools went to the cache. Nobody has checked them: whoever published them")
    print("decides what attacks with shadow models find. `make clean-cache` removes them.")
    return 0


def prune(asked: PruneOptions) -> int:
    """`prune`: remove what can be made again."""
    from leakboard.leaderboard.engine.store import prune as removed
    from leakboard.leaderboard.engine.store import size_words

    count, size = removed(Path(asked.run), dry_run=asked.dry_run)
    if not count:
        print("There is nothing to remove: the run holds no transcript of a finished training that can be replayed.")
        return 0
    print(f"{count} files, {size_words(size)}, {'would be' if asked.dry_run else 'were'} removed.")
    return 0


def site(asked: SiteOptions) -> int:
    """`site`: build the site of everything published."""
    from leakboard.leaderboard.api.site import site as build

    print(f"site: {build(asked.out)}")
    return 0
