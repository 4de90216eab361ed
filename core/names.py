"""File names and words, without torch, because a finished run must not import torch to answer."""

from __future__ import annotations


def file_part(label: str) -> str:
    """A label as part of a file name: characters that a shell or a file system may not accept become underscores.

    >>> file_part("mp-dp (paper's formula)")
    'mp-dp__paper_s_formula_'
    """
    return "".join(char if char.isalnum() or char in "+-._@" else "_" for char in label)


def with_article(word: str) -> str:
    """A word with its article.

    >>> with_article("attack"), with_article("defense")
    ('an attack', 'a defense')
    """
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
