"""One small table in every format: its structure, its footnotes, and text that means harm."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.leaderboard.tables.formats import to_csv, to_html, to_json, to_latex, to_markdown, to_terminal
from leakboard.leaderboard.tables.formats.latex import SIGNS
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

COLUMNS = (
    Column("name", "Defense"),
    Column("auc", "AUC", direction="lower", digits=3),
    Column("acc", "Accuracy", "%", "higher", 1, help="on the test set"),
    Column("eps", "Proven ε"),
)
ROWS = (
    Row({"name": Cell("mp_dp"), "auc": Cell(0.5123, 0.49, 0.53, link="r/1"), "acc": Cell(61.04)}, section="CIFAR & co"),
    Row({"name": Cell("pile"), "auc": Cell(0.6), "acc": Cell(61.0), "eps": Cell(None, note="50 % lost")}, "CIFAR & co"),
    Row({"name": Cell("ldp", note="50 % lost"), "auc": Cell(0.4, text="≤ prior")}, section="CIFAR & co", muted=True),
)
TABLE = Table("Who is in?", COLUMNS, ROWS, ("Wilson, 95 %.",), "Lower ± better").mark_best()
TEXTS = [to_markdown, to_latex, to_terminal, to_html]
HOSTILE = '<script>alert("1")</script> | \\ $x$ \x1b[31m\n# `a` *b* _c_ [d](javascript:e) {} ~^&%'


def poisoned(text: str) -> Table:
    """A table that has the text in every place that takes one."""
    cell = Cell(text, note=text, link=text)
    rows = (Row({"k": cell, "n": Cell(0.5, text=text)}, section=text), Row({"k": cell}, muted=True))
    return Table(text, (Column("k", text, text, help=text), Column("n", "N")), rows, (text,), text)


class Elements(HTMLParser):
    """Collects the elements of a fragment and checks that all are closed in order."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(fragment)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markdown() -> None:
    assert to_markdown(TABLE) == (
        "### Who is in?\n\nLower ± better\n\n"
        "| Defense | AUC ↓ | Accuracy (%) ↑ | Proven ε |\n"
        "| --- | ---: | ---: | --- |\n"
        "| **CIFAR &amp; co** |  |  |  |\n"
        "| mp\\_dp | **0.512** [0.490, 0.530] | **61.0** | – |\n"
        "| pile | 0.600 | **61.0** | –¹ |\n"
        "| *ldp*¹ | *≤ prior* | *–* | *–* |\n\n"
        "- ¹ 50 % lost\n- Wilson, 95 %.\n"
    )


@given(st.text(max_size=30))
@settings(max_examples=50)
def test_no_text_breaks_a_markdown_row(text: str) -> None:
    rows = [line for line in to_markdown(poisoned(text)).split("\n") if line.startswith("| ")]
    assert len(rows) == 2 + bool(text) + 2
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}


def test_csv_comes_back() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([TABLE, TABLE]))))
    assert len(rows) == 6
    first = {k: v for k, v in rows[0].items() if v}
    assert first == {
        **{"table": "Who is in?", "section": "CIFAR & co", "muted": "0", "name": "mp_dp", "auc": "0.5123"},
        **{"auc:low": "0.49", "auc:high": "0.53", "auc:link": "r/1", "acc": "61.04", "caption": "Lower ± better"},
    }
    assert (rows[1]["eps"], rows[1]["eps:note"]) == ("", "50 % lost")
    assert (rows[2]["muted"], rows[2]["auc"], rows[2]["auc:text"]) == ("1", "0.4", "≤ prior")


def test_csv_of_unlike_tables_has_one_header() -> None:
    other = Table("B", (Column("psnr", "PSNR"),), (Row({"psnr": Cell(-3.5, low=0.0)}),))
    rows = list(csv.DictReader(io.StringIO(to_csv([TABLE, other]))))
    assert (rows[0]["psnr"], rows[3]["psnr"], rows[3]["psnr:low"], rows[3]["name"]) == ("", "-3.5", "0.0", "")
    with pytest.raises(ValueError, match="the same name"):
        to_csv([Table("C", (Column("muted", "M"),), ())])


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "=\r=1"])
def test_csv_runs_no_formula(text: str) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([poisoned(text)]), newline="")))
    assert len(rows) == 2
    for row in rows:
        assert all(not field.lstrip().startswith(tuple("=+-@＝")) for field in row.values())
        assert row["table"] == row["k"] == row["k:note"] == "'" + text.replace("\t", " ").replace("\r", " ")
    number = to_csv([Table("T", (Column("n", "N"),), (Row({"n": Cell(-1.5)}),))])
    assert number.endswith("T,,0,-1.5\n")


def test_json_comes_back() -> None:
    back = json.loads(to_json([TABLE]))
    table = back["tables"][0]
    assert (back["schema"], table["title"], len(table["rows"])) == (1, "Who is in?", 3)
    assert table["columns"][2] == {
        **{"key": "acc", "title": "Accuracy", "unit": "%"},
        **{"direction": "higher", "digits": 1, "help": "on the test set", "significant": None},
    }
    assert table["rows"][1]["cells"]["eps"] == {
        **{"value": None, "low": None, "high": None, "text": None},
        **{"best": False, "note": "50 % lost", "link": "", "mark": ""},
    }
    assert json.loads(to_json([])) == {"schema": 1, "tables": []}


def test_latex() -> None:
    needs, *lines = to_latex(TABLE).splitlines()
    assert needs == r"% \usepackage{booktabs,graphicx}"
    assert lines[:6] == [
        *[r"\begin{table}[t]", r"\centering", r"\caption{Who is in?. Lower $\pm$ better}"],
        r"\label{tab:who-is-in}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{@{}lrrl@{}}",
    ]
    assert lines[6:17] == [
        *[r"\toprule", r"Defense & AUC $\downarrow$ & Accuracy (\%) $\uparrow$ & Proven $\varepsilon$ \\", r"\midrule"],
        r"\multicolumn{4}{l}{\textit{CIFAR \& co}} \\",
        r"mp\_dp & $\mathbf{0.512}^{+0.018}_{-0.022}$ & $\mathbf{61.0}$ & \textendash{} \\",
        r"pile & $0.600$ & $\mathbf{61.0}$ & \textendash{}\textsuperscript{1} \\",
        *[r"\midrule", r"ldp\textsuperscript{1} & $\leq$ prior & \textendash{} & \textendash{} \\"],
        *[r"\bottomrule", r"\end{tabular}}", r"\par\smallskip{\footnotesize \textsuperscript{1} 50 \% lost\par}"],
    ]
    assert lines[-1] == r"\end{table}"


@given(st.text(max_size=30) | st.just(HOSTILE) | st.text(alphabet='＼％｛｝＄[]*-–≤ετ̄ß²\\{}$&#^_~%|<>`"', max_size=12))
@settings(max_examples=100)
def test_no_text_breaks_latex(text: str) -> None:
    needs, latex = to_latex(poisoned(text)).split("\n", 1)
    assert needs.startswith("% ")
    frame_line = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    assert latex.count(frame_line) == 1
    latex = latex.replace(frame_line, "{")
    bare = re.sub(r"\\[&%$#_{}\\,]", "", latex)  # escaped signs, and the ends of lines
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not set(bare) & set("%#~^≤–ε") - {"^" if r"^\circ" in latex else ""}
    assert all(char.isascii() or (char < "\u0180" and char.isalpha()) for char in latex if char != "\n")
    frame = {"begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "multicolumn", "textit"}
    frame |= {"label", "par", "smallskip", "footnotesize", "textsuperscript"}
    signs = re.findall(r"\\([A-Za-z]+)", " ".join(SIGNS.values()))
    assert set(re.findall(r"\\([A-Za-z]+)", latex.replace(r"\\", ""))) <= {*frame, *signs}
    assert all(line.count("&") - line.count(r"\&") in (0, 1) for line in latex.splitlines())


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (Cell(0.5, 0.4, 0.6), r"$0.50 \pm 0.10$"),
        (Cell(0.5, 0.4, 0.604), r"$0.50 \pm 0.10$"),  # as far both ways to the shown digits
        (Cell(0.5, 0.2, 0.6), "$0.50^{+0.10}_{-0.30}$"),
        (Cell(0.5, None, 0.6), r"$0.50_{\,[\cdot, 0.60]}$"),
        (Cell(0.5, 0.6, 0.7), r"$0.50_{\,[0.60, 0.70]}$"),
        (Cell(0.5, 0.4, 0.6, best=True), r"$\mathbf{0.50} \pm 0.10$"),
        (Cell(0.5, 0.4, 0.6, text="≤ prior", best=True), r"\textbf{$\leq$ prior}"),
    ],
)
def test_latex_intervals(cell: Cell, shown: str) -> None:
    assert f"{shown} \\\\" in to_latex(Table("T", (Column("k", "K"),), (Row({"k": cell}),))).splitlines()


def test_latex_knows_its_traps() -> None:
    shown = to_latex(Table("T", (Column("k", "K"),), (Row({"k": Cell("[1] --keys a\\b ＼input α漢")}),)))
    assert r"{[}1{]} -{}-keys a\textbackslash{}b \textbackslash{}input $\alpha$?" in shown


def test_terminal() -> None:
    assert to_terminal(TABLE) == (
        "Who is in?\nLower ± better\n\n"
        "Defense                  AUC ↓  Accuracy (%) ↑  Proven ε\n"
        "────────────────────────────────────────────────────────\n"
        "CIFAR & co\n"
        "mp_dp    *0.512 [0.490, 0.530]           *61.0  –\n"
        "pile                     0.600           *61.0  –¹\n"
        "┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄\n"
        "ldp¹                   ≤ prior               –  –\n\n"
        "¹ 50 % lost\nWilson, 95 %.\n* best\n"
    )


@pytest.mark.parametrize("width", [40, 50, 60, 80, 200])
def test_a_terminal_is_never_overrun(width: int) -> None:
    for table in (TABLE, poisoned("long words " * 30), poisoned("x" * 300)):
        assert max(map(len, to_terminal(table, width).splitlines())) <= width
    narrow = to_terminal(TABLE, width)
    for shown in ("*0.512 [0.490, 0.530]", "Accuracy", "(%) ↑", "≤ prior", "–¹"):  # headings may be broken
        assert shown in narrow
    assert to_terminal(TABLE, 1) == to_terminal(TABLE, 40)


def marked() -> Table:
    verdicts = {"a": "did not hold", "b": "held", "c": "not shown", "d": "not asked"}
    columns = (Column("name", "name"), *(Column(key, f"a long heading of column {key}") for key in verdicts))
    cells = {key: Cell(0.5, text="50 % phi", mark=mark) for key, mark in verdicts.items()}
    return Table("Marks → ε", columns, (Row({"name": Cell("mp-dp"), **cells}),))


def test_headings_are_broken_before_a_table_is_cut() -> None:
    lines = to_terminal(marked(), 60).splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("─"))
    assert rule > 3
    words = " ".join(lines[2:rule]).split()
    assert [words.count(word) for word in ("name", "heading", "column", "a", "d")] == [1, 4, 4, 5, 1]
    assert max(map(len, lines)) <= 60
    (row,) = [line for line in lines if line.startswith("mp-dp")]  # one block: nothing stands beneath
    assert re.split(r"  +", row) == ["mp-dp", "✗ 50 % phi", "✓ 50 % phi", "~ 50 % phi", "50 % phi"]
    assert lines[-2:] == ["✗ an attack beat guessing   ✓ no attack beat guessing   ~", "not shown"]


def test_a_mark_is_a_sign_in_every_format() -> None:
    assert "| ✗ 50 % phi | ✓ 50 % phi |" in to_markdown(marked())
    assert r"$\times$ 50 \% phi" in to_latex(marked())
    assert '<span class="mark">✗</span> <span class="value">50 % phi</span>' in to_html(marked())
    (row,) = csv.DictReader(io.StringIO(to_csv([marked()])))
    assert (row["a"], row["a:mark"], row["a:text"]) == ("0.5", "did not hold", "50 % phi")


def test_an_old_terminal_gets_ascii_that_aligns() -> None:
    shown = to_terminal(marked(), 200, only_ascii=True)
    assert shown.isascii()
    assert "Marks -> eps" in shown
    heading, rule, row = shown.splitlines()[-5:-2]
    assert row.index("+ 50 %") == heading.index("a long heading of column b")
    assert set(rule) == {"-"}
    assert "x an attack beat guessing   + no attack beat guessing   ~ not shown" in shown


@pytest.mark.usefixtures("colours")
def test_a_mark_has_its_colour_and_none_where_colours_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = to_terminal(marked(), 100, colour=True)
    for code, sign in (("31", "✗"), ("32", "✓"), ("33", "~")):
        assert f"\x1b[{code}m{sign} 50 % phi" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[3[0-9]m", to_terminal(marked(), 100, colour=True))


def test_a_terminal_gets_no_control_characters_and_wide_ones_align() -> None:
    shown = to_terminal(poisoned("\x1b]0;owned\x07\u202ehidden\r\n"))
    assert all(char == "\n" or unicodedata.category(char)[0] != "C" for char in shown)
    wide = Table("T", (Column("k", "K"), Column("n", "N")), (Row({"k": Cell("漢字"), "n": Cell(1)}),))
    assert to_terminal(wide).splitlines()[-3:] == ["K     N", "───────", "漢字  1"]


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can show colours, whatever this one can."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("colours")
def test_colours_are_added_to_the_same_text() -> None:
    coloured = to_terminal(TABLE, 60, colour=True)
    assert "\x1b[1;32m*0.512 [0.490, 0.530]\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == to_terminal(TABLE, 60)


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("text", ["[bold red]x[/]", "[/]", "\x1b[31mred", ":smile:", "[link=http://x]y[/link]"])
def test_a_plugin_cannot_colour_a_terminal(text: str) -> None:
    shown = to_terminal(poisoned(text))
    assert "\x1b" not in shown
    assert text.replace("\x1b", " ") in shown  # markup is text like any other
    codes = {"\x1b[1m", "\x1b[2m", "\x1b[0m", "\x1b[1;32m"}
    assert set(re.findall(r"\x1b\[[0-9;]*m", to_terminal(poisoned(text), colour=True))) <= codes


def test_html() -> None:
    page = Elements(to_html(TABLE))
    tags = [tag for tag, _ in page.found]
    assert (tags.count("table"), tags.count("caption"), tags.count("tr")) == (1, 1, 1 + 1 + 3 + 2)
    heads = [attributes for tag, attributes in page.found if tag == "th"]
    assert [head["scope"] for head in heads] == ["col"] * 4 + ["rowgroup"] + ["row"] * 3
    assert heads[2]["data-direction"] == "higher"
    assert heads[2]["title"] == "on the test set"
    cells = [attributes for tag, attributes in page.found if tag == "td" and "data-sort" in attributes]
    assert [cell["data-sort"] for cell in cells] == ["0.5123", "61.04", "", "0.6", "61.0", "", "0.4", "", ""]
    assert cells[0]["class"] == "number best"
    assert ("a", {"href": "#record=r%2F1", "data-record": "r/1"}) in page.found
    assert [a["class"] for tag, a in page.found if tag == "tbody"] == ["section", "ranked", "muted"]
    assert "0.512 [0.490, 0.530]" in page.text


@pytest.mark.parametrize(
    "text", [HOSTILE, '" onmouseover="alert(1)', "' onclick='x", "javascript:alert(1)", "</table>"]
)
def test_html_runs_nothing(text: str) -> None:
    page = Elements(to_html(poisoned(text)))
    allowed = {"table", "caption", "strong", "thead", "tbody", "tfoot", "tr", "th", "td", "span", "sup", "a"}
    assert {tag for tag, _ in page.found} <= allowed
    names = {name for _, attributes in page.found for name in attributes}
    assert names <= {
        "class",
        "scope",
        "colspan",
        "title",
        "href",
        "data-key",
        "data-direction",
        "data-sort",
        "data-record",
    }
    assert all((attributes["href"] or "").startswith("#record=") for tag, attributes in page.found if tag == "a")


@pytest.mark.parametrize("render", TEXTS)
def test_an_empty_table_still_has_its_head(render: Callable[[Table], str]) -> None:
    assert "Defense" in render(Table("T", COLUMNS, ()))


@pytest.mark.parametrize("render", TEXTS)
def test_the_tenth_footnote_has_two_digits(render: Callable[[Table], str]) -> None:
    rows = tuple(Row({"name": Cell(None, note=f"reason {i}")}) for i in range(1, 11))
    shown = render(Table("T", COLUMNS, rows))
    assert any(f"{mark} reason 10" in shown for mark in ("¹⁰", r"\textsuperscript{10}", "<sup>10</sup>"))
