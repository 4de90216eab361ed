"""Documents as pages: Markdown to HTML that loads nothing from outside, with links that work inside the site.

A page has the document's path with `.html` instead of `.md`, so that relative links keep their meaning. Raw HTML in a
document is shown as text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from leakboard.core.errors import UserError

#: documents at the top of the checkout, beside all of docs/
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md")
#: the folder of the published boards, which is the site's front page
BOARDS = "leaderboard/published"


@dataclass(frozen=True)
class Document:
    """A rendered document: paths are relative to the checkout; `headings` are (id, text) of the second level."""

    path: str
    title: str
    #: the first heading, and everything after it
    heading: Markup
    body: Markup
    headings: tuple[tuple[str, str], ...]
    #: files that the document shows or links to, which are copied to the same path of the site
    files: tuple[str, ...]

    @property
    def page(self) -> str:
        """The path of its page in the site.

        >>> Document("docs/api.md", "", Markup(), Markup(), (), ()).page
        'docs/api.html'
        """
        return str(PurePosixPath(self.path).with_suffix(".html"))


def documents(root: Path) -> list[Document]:
    """All documents of a checkout: those at its top, then docs/ by name."""
    paths = [root / name for name in TOP] + sorted((root / "docs").glob("*.md"))
    return [render(root, path.relative_to(root).as_posix()) for path in paths if path.is_file()]


def render(root: Path, path: str) -> Document:
    """One document; a link to a file that is not there is refused."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    for name, rule in _RULES.items():
        parser.add_render_rule(name, rule)
    tokens = parser.parse((root / path).read_text(encoding="utf-8"))
    headings = _name_headings(tokens)
    files: list[str] = []
    for token in tokens:
        if token.attrs.pop("style", "") == "text-align:right":  # a site has no inline styles, by its policy
            token.attrSet("class", "right")
        for child in token.children or ():
            _redirect(child, root, path, files)
    title = next((text for level, _, text in headings if level == "h1"), PurePosixPath(path).stem)
    first = 3 if tokens and tokens[0].tag == "h1" else 0  # opening, text, closing
    parts = (parser.renderer.render(part, parser.options, {}) for part in (tokens[:first], tokens[first:]))
    heading, body = map(Markup, parts)  # the renderer escapes all text
    second = tuple((name, text) for level, name, text in headings if level == "h2")
    return Document(path, title, heading, body, second, tuple(dict.fromkeys(files)))


def anchor_of(heading: str) -> str:
    """The id of a heading, as GitHub makes it: lower case, no punctuation, one hyphen per space.

    >>> anchor_of("What Ψ, Φ and R are"), anchor_of("`run`: a suite")
    ('what-ψ-φ-and-r-are', 'run-a-suite')
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _name_headings(tokens: Sequence[Token]) -> list[tuple[str, str, str]]:
    """Give every heading its id; returns (tag, id, text). Equal headings are numbered, as GitHub does it."""
    found: list[tuple[str, str, str]] = []
    seen: dict[str, int] = {}
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(part.content for part in inline.children or ())
            name = anchor_of(text)
            times = seen[name] = seen.get(name, -1) + 1
            opening.attrSet("id", f"{name}-{times}" if times else name)
            found.append((opening.tag, str(opening.attrGet("id")), text))
    return found


def _redirect(token: Token, root: Path, path: str, files: list[str]) -> None:
    """Lead a link or an image to its place in the site; files that must be copied are added to the list."""
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    if attribute is None:
        return
    target = str(token.attrGet(attribute))
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        if token.type == "image":
            raise UserError(f"{path} shows an image from outside, which a site must not load: {target}.")
        token.attrSet("rel", "noreferrer")
        return
    if not parts.path:
        return
    file = os.path.normpath(PurePosixPath(path).parent / unquote(parts.path))
    here = root / file
    if file.startswith("..") or not here.exists():
        raise UserError(f"{path} links to {target}, which is not there.")
    after = f"#{parts.fragment}" if parts.fragment else ""
    if file == BOARDS:
        token.attrSet(attribute, f"{up(path)}index.html")
    elif here.is_dir():
        raise UserError(f"{path} links to the folder {file}; a site has pages for files and for {BOARDS} only.")
    elif file.endswith(".md"):
        token.attrSet(attribute, f"{parts.path.removesuffix('.md')}.html{after}")
    else:
        files.append(file)


def up(path: str) -> str:
    """The way from a page back to the top of the site.

    >>> up("index.html"), up("docs/api.html"), up("boards/quick/index.html")
    ('', '../', '../../')
    """
    return "../" * (len(PurePosixPath(path).parts) - 1)


# --- tables and code scroll in frames of their own: a phone is narrower than they are ------------------------------


def _table_open(*given: Any) -> str:
    return '<div class="scroll" role="group" aria-label="Table" tabindex="0"><table class="plain">\n'


def _table_close(*given: Any) -> str:
    return "</table></div>\n"


def _code(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    text = Markup.escape(tokens[index].content)
    return f'<pre tabindex="0" role="group" aria-label="Code"><code>{text}</code></pre>\n'


_RULES = {"table_open": _table_open, "table_close": _table_close, "fence": _code, "code_block": _code}
