"""The command line. Imports torch only where a command needs it, so that help and `list` answer at once."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from leakboard.core.errors import UserError
from leakboard.core.registry import FOLDERS, entries, installed_files, load_file
from leakboard.leaderboard.cli.finished import look, repeat
from leakboard.leaderboard.tables.formats import formats
from leakboard.suites import suite_files

KINDS = {"defenses": "defense", "attacks": "attack", "datasets": "dataset", "models": "model", "metrics": "metric"}
EPILOG = "Exit codes: 0 all cells worked; 1 some cells failed; 2 a mistake in what was given; 130 stopped by Ctrl-C."


#: of an error's sentence so much is shown: it may quote a file
LONGEST_SENTENCE = 600


class Parser(argparse.ArgumentParser):
    """argparse, whose complaints are one line like all others here."""

    def error(self, message: str) -> NoReturn:
        """Say what was wrong and where help is; exit code 2."""
        self.exit(2, complaint(f"{message}; {self.prog} --help tells what is allowed.") + "\n")


def complaint(message: str) -> str:
    """An error as it is printed: one line of bounded length that cannot steer a terminal, whatever it quotes."""
    line = " ".join("".join(char if char.isprintable() else " " for char in message).split())
    if len(line) > LONGEST_SENTENCE:
        line = f"{line[: LONGEST_SENTENCE // 2]} … {line[-LONGEST_SENTENCE // 2 :]}"
    return f"run_benchmark.py: {line}"


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    parser = Parser(
        prog="run_benchmark.py",
        description="LeakBoard measures what a federated-learning defense really leaks. "
        "Without arguments it runs the suite `quick`.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run a suite: train, attack, score, print the table, write the page"))
    listing = commands.add_parser("list", help="list the plugins and suites")
    listing.add_argument("kind", nargs="?", choices=[*KINDS, "suites"], help="only this kind")
    listing.add_argument("--json", action="store_true", help="everything about each plugin, as JSON")
    _add_out(commands.add_parser("status", help="what a running or stopped run has done, and what is left"))
    table = commands.add_parser("table", help="print the tables of a run")
    _add_out(table)
    _add_format(table)
    table.add_argument("--all", action="store_true", help="the phase times and the list of all cells too")
    table.add_argument("--phases", action="store_true", help="the phase times alone: seconds a round by phase")
    table.add_argument("--paper", action="store_true", help="the paper's tables: ours beside the paper's own figures")
    table.add_argument(
        "--target", type=float, metavar="PERCENT", help="with --paper: the accuracy that time is measured to"
    )
    report = commands.add_parser("report", help="write the page of a run")
    _add_out(report)
    _add_plugin(report, "charts of your own")
    show = commands.add_parser("show", help="one record, readable, with its images")
    show.add_argument("record", metavar="RECORD.json")
    new = commands.add_parser("new", help="write a working skeleton of a plugin: one file")
    new.add_argument("kind", choices=["defense", "attack"])
    new.add_argument("name", help="lower-case words joined by '-', such as noisy-gradient")
    new.add_argument("--to", metavar="DIR", default=".", help="folder of the new file (default: here)")
    check = commands.add_parser("check", help="run the contract of all plugins on a file of your own")
    check.add_argument("plugin", metavar="FILE.py")
    compare = commands.add_parser("compare", help="two runs cell by cell: settings and scores that differ")
    compare.add_argument("first", metavar="A", help="folder of a run, or of published records")
    compare.add_argument("second", metavar="B")
    _add_format(compare)
    submit = commands.add_parser("submit", help="collect a finished run's records for publishing")
    submit.add_argument("run", metavar="RUN", help="folder of the run")
    submit.add_argument("--to", metavar="DIR", help="where they go (default: leaderboard/published)")
    submit.add_argument("--allow-dirty", action="store_true", help="also records of code that is in no commit")
    verify = commands.add_parser("verify", help="compute records again and compare, within stated tolerances")
    verify.add_argument("records", metavar="RECORD.json", nargs="+")
    verify.add_argument("--data", metavar="NAME:PLACE", default="", help="where the data lies, such as npz:FILE")
    verify.add_argument(
        "--plugin", metavar="FILE.py", default=[], nargs="+", action="extend", help="the plugins of these records"
    )
    verify.add_argument("--lpips-weights", metavar="FILE", default="", help="AlexNet weights for LPIPS, from a file")
    verify.add_argument("--mark", action="store_true", help="note beside each record that it was verified")
    return parser


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="runs/quick", help="folder of the run (default: runs/quick)")


def _add_format(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(formats())
    parser.add_argument("--format", metavar="NAME", help=f"one of: {names} (default: for the terminal)")
    _add_plugin(parser, "formats of your own")


def _add_plugin(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--plugin", metavar="FILE.py", default=[], nargs="+", action="extend", help=what)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    many: dict[str, str] = {"nargs": "+", "action": "extend"}
    parser.add_argument("--suite", default="quick", metavar="NAME|FILE.yaml", help="what to run (default: quick)")
    parser.add_argument("--defense", metavar="D", default=[], help="only these defenses, and the control", **many)  # type: ignore[arg-type]
    parser.add_argument("--attack", metavar="A", default=[], help="only these attacks", **many)  # type: ignore[arg-type]
    parser.add_argument("--seed", metavar="S", default=[], type=int, help="these seeds, not the suite's", **many)  # type: ignore[arg-type]
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: runs/<suite>)")
    parser.add_argument("--workers", metavar="N", type=int, default=0, help="jobs at once (default: one a core)")
    parser.add_argument(
        "--executor", choices=["local", "ray"], default="local", help="this machine or a Ray cluster (default: local)"
    )
    parser.add_argument(
        "--gpus-per-cell", metavar="X", type=float, default=0.0, help="with --executor ray: GPUs a cell, such as 0.5"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where attacks compute")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan with an estimate of its time, run nothing"
    )
    parser.add_argument("--plugin", metavar="FILE.py", default=[], help="defenses or attacks of your own", **many)  # type: ignore[arg-type]
    parser.add_argument("--retry-failed", action="store_true", help="compute failed, crashed and timed-out cells again")
    parser.add_argument("--fresh-keys", action="store_true", help="keys and draws from the system, not from the seed")
    parser.add_argument("--lpips-weights", metavar="FILE", default="", help="AlexNet weights for LPIPS, from a file")
    parser.add_argument("--download", action="store_true", help="allow downloads (data sets, LPIPS weights)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one sentence on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that this terminal cannot show must not end a run
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = build_parser().parse_args(given or ["run"])
        if args.command is None:
            args = build_parser().parse_args(["run", *given])
        shown = args.plugin if args.command in ("table", "compare", "report") else []
        for file in (*installed_files(), *shown):
            load_file(file)
        if args.command == "list":
            return list_plugins(args.kind, args.json)
        if args.command == "run":
            if (code := repeat(args)) is not None:
                return code
            args.before = look(args)  # before the code that computes is loaded: what changes from now on is noticed
        from leakboard.leaderboard.cli import commands

        command: Callable[[argparse.Namespace], int] = getattr(commands, args.command)
        return command(args)
    except UserError as error:
        print(complaint(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. What was finished is kept: the same command goes on from there.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `... | head` closed the pipe: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:  # not about a file that somebody named
            raise
        print(complaint(f"{error.filename} cannot be used: {error.strerror}."), file=sys.stderr)
        return 2


def list_plugins(kind: str | None, as_json: bool) -> int:
    """Print the plugins of one kind, or of all."""
    wanted = [kind] if kind else [*KINDS, "suites"]
    found = {name: suites() if name == "suites" else list(entries(KINDS[name]).values()) for name in wanted}
    if as_json:
        print(json.dumps(found[kind] if kind else found, indent=1))
        return 0
    for name, items in found.items():
        print(f"{name} ({len(items)})")
        width = max((len(item["name"]) for item in items), default=0)
        for item in items:
            print(f"  {item['name']:{width}}  {item['summary']}")
        print()
    return 0


def suites() -> list[dict[str, str]]:
    """The suites of the checkout with their descriptions, read without the YAML machinery of a run."""
    import yaml

    found = []
    for name, file in suite_files().items():
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
        summary = str(given.get("description", "")) if isinstance(given, dict) else ""
        found.append({"name": name, "kind": "suite", "summary": summary, "file": f"suites/{file.name}"})
    return found


assert set(KINDS.values()) == set(FOLDERS)
