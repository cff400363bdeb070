"""The tutorial's code runs, and prints what the tutorial says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_prints_what_it_says():
    text = PAGE.read_text(encoding="utf-8")
    steps = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(steps) == 6
    assert text.count("```python") == 6
    names: dict = {}
    for code, said in steps:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102
        assert printed.getvalue() == said
