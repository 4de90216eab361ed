"""Names of files, without torch: what a finished run answers with must not import it."""

from __future__ import annotations


def file_part(label: str) -> str:
    """A label as a part of a file's name: what a shell or a file system could stumble over becomes an underscore.

    >>> file_part("mp-dp (paper's formula)")
    'mp-dp__paper_s_formula_'
    """
    return "".join(char if char.isalnum() or char in "+-._@" else "_" for char in label)
