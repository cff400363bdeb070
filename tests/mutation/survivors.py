"""The surviving mutants of survivors.md: why each survives, and which entries are out of date."""

import difflib
import re
from pathlib import Path

from tests.mutation.mutate import PACKAGE, statements

PAGE = Path(__file__).with_suffix(".md")


def reasons():
    """{(file, before, after): reason} of survivors.md, where every heading is a reason."""
    entries, reason = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            reason = line.removeprefix("## ")
        elif entry := re.fullmatch(r"- (\S+): ``(.*)`` → ``(.*)``", line):
            entries[entry.groups()] = reason
    return entries


def stale(entries):
    """Those entries whose file or statement is no longer in the package.

    Args:
        entries: (file, before, after) each, as keys of `reasons`.

    Returns:
        {(file, before): the statement of the file that is most like it, or None}.
    """
    present = {}  # {file: its statements}
    found = {}
    for file, before, _ in entries:
        if file not in present:
            path = PACKAGE / file
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            present[file] = statements(text)
        if before not in present[file]:
            alike = difflib.get_close_matches(before, present[file], n=1)
            found[file, before] = alike[0] if alike else None
    return found
