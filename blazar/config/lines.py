"""Finds the line on which a TOML key stands, for error messages: the parser of the standard library does not tell.

A light scan of a file that has been parsed already: it follows table headers and keys, and passes over strings and
comments. A key that it cannot place is reported on line 0, never on a wrong one.
"""

from __future__ import annotations

import re

HEADER = re.compile(r"^\s*(\[\[?)\s*(?P<name>[^\]]+?)\s*\]\]?\s*(#.*)?$")
KEY = re.compile(
    r"""^\s*(?P<key>(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*="""
)
PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'""")


def key_lines(text: str) -> dict[str, int]:
    """The first line of every key and table, by dotted path.

    Entries of an array of tables are numbered from 0: `keys.0.name`.
    """
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    closer = ""  # of a string over several lines that is open
    for number, line in enumerate(text.splitlines(), 1):
        if closer:
            if closer in line:
                closer = ""
            continue
        if header := HEADER.match(line):
            table = _path(header["name"])
            if header[1] == "[[":
                count = counts.get(table, 0)
                counts[table] = count + 1
                table = f"{table}.{count}"
            found.setdefault(table, number)
        elif key := KEY.match(line):
            path = _path(key["key"])
            found.setdefault(f"{table}.{path}" if table else path, number)
            closer = _left_open(line[key.end() :])
        else:
            closer = _left_open(line)
    return found


def _path(dotted: str) -> str:
    return ".".join(part.strip("\"'") for part in PART.findall(dotted))


def _left_open(rest: str) -> str:
    """The closing quotes that a later line has, if a string over several lines starts here and does not end."""
    for quotes in ('"""', "'''"):
        if rest.count(quotes) % 2:
            return quotes
    return ""
