"""The page as text: it fetches nothing, escapes all text, and has an accessible structure."""

import base64
import dataclasses
import hashlib
import html.parser
import itertools
import json
import math
import re

import pytest

import antiphase as ap
from antiphase.reporting import charts, page
from antiphase.reporting.page import Column, Grid, Page
from tests.reporting import sample

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)></script><!--<b>&amp;"


class Outline(html.parser.HTMLParser):
    """Headings, tags and attributes in order."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def rendered():
    return page.render(sample.page())


def test_the_same_page_is_the_same_text(rendered):
    assert page.render(sample.page()) == rendered


def test_nothing_is_fetched_and_only_its_own_script_runs(rendered):
    tags = Outline(rendered).tags
    policy = next(a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind, tag in (("script", "<script>"), ("style", "<style>")):
        inside = rendered.split(tag)[1].split(f"</{kind}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    for tag, attributes in tags:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in rendered
    assert "@font-face" not in rendered


def test_the_answer_comes_first_and_headings_are_in_order(rendered):
    tags = Outline(rendered).tags
    levels = [int(t[1]) for t, _ in tags if re.fullmatch("h[1-6]", t)]
    assert levels[:2] == [1, 2]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert [t for t, _ in tags if t in ("header", "main", "footer")] == ["header", "main", "footer"]
    body = rendered.split("<body>")[1]
    answer, table, figures, promise, commands, notes = (
        body.index(f'id="{name}"')
        for name in (
            "the-answer",
            "the-table",
            "the-figures",
            "the-promise",
            "to-reproduce",
            "the-notes",
        )
    )
    assert answer < table < figures < promise < commands < notes
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_charts_have_descriptions_for_screen_readers(rendered):
    pictures = [a for t, a in Outline(rendered).tags if a.get("role") == "img"]
    assert len(pictures) == 2 * 6 + 3
    assert all(len(a["aria-label"]) > 30 for a in pictures)


def test_all_text_is_escaped():
    hostile = HOSTILE
    chart = charts.Lines(
        hostile, hostile, hostile, [charts.Series(hostile, hostile, [1, 2], [1, 2])], note=hostile
    )
    maps = charts.HeatMaps(hostile, {hostile: [[1.0, -1.0]]}, hostile, hostile, note=hostile)
    statement = ap.calibrate(ap.design("dp-sgd", steps=2), epsilon=1, delta=1e-6).statement()
    grid = Grid(
        hostile,
        [Column("a", hostile, hostile, hostile), Column("b", "b")],
        [{"a": hostile, "b": hostile}],
    )
    text = page.render(
        Page(
            title=hostile,
            question=hostile,
            answer=hostile,
            points=[hostile],
            grids=[grid],
            charts=[chart, maps],
            statements=[dataclasses.replace(statement, mechanism=hostile, participation=hostile)],
            reproduce=[hostile],
            notes=[hostile],
            made=hostile,
        )
    )
    tags = Outline(text).tags
    assert [t for t, _ in tags if t in ("img", "b")] == []
    assert [a.get("type") for t, a in tags if t == "script"] == ["application/json"] * 2 + [None]
    for data in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL):
        json.loads(data)
    found = json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    )
    assert found["series"][0]["label"] == hostile


def test_the_format_of_numbers():
    column = Column("a", "a")
    shown = [
        column.show(v)
        for v in (None, 0.0, 0.0512345, 5.2149, 22.669, 1234.567, -3.0, 7, 2e-10, math.inf, "x")
    ]
    assert shown == [
        "–",
        "0.00",
        "0.0512",
        "5.21",
        "22.7",
        "1,235",
        "−3.00",
        "7",
        "2.00×10⁻¹⁰",
        "∞",
        "x",
    ]
    assert Column("a", "a", digits=".0e").show(2.4e-10) == "2×10⁻¹⁰"


def test_the_best_value_is_marked():
    columns = [
        Column("m", "m"),
        Column("low", "l", better="low"),
        Column("high", "h", better="high"),
        Column("n", "n"),
    ]
    rows = [
        {"m": "a", "low": 1.0, "high": 1.0, "n": 1.0},
        {"m": "b", "low": 2.0, "high": 2.0, "n": 2.0},
        {"m": "c"},
    ]
    grid = Grid("c", columns, rows)
    assert [grid.best(c) for c in columns] == [None, 1.0, 2.0, None]
    assert page.render(Page("t", "q", "a", grids=[grid])).count("(best)") == 2


def test_a_page_may_be_nearly_empty():
    text = page.render(Page("t", "q", "a"))
    assert "the-table" not in text
    assert "the-figures" not in text
    assert page.render(
        Page("t", "q", "a", grids=[Grid("c", [], [])], charts=[charts.Lines("t", "x", "y", [])])
    )


def test_the_statement_is_shown_and_can_be_saved(rendered):
    statement = sample.page().statements[0]
    for paragraph in statement.paragraphs():
        assert paragraph.split(",")[0].replace("'", "&#39;") in rendered
    assert len(statement.paragraphs()) == 6
    link = re.search(r'href="data:application/json;base64,([^"]+)"', rendered)[1]
    assert json.loads(base64.b64decode(link)) == json.loads(statement.to_json())


def test_a_page_is_written_atomically(tmp_path, monkeypatch):
    small = Page("t", "q", "a")
    path = page.write(tmp_path / "new" / "folder" / "report.html", small)
    assert path.read_text(encoding="utf-8") == page.render(small)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(
        IsADirectoryError, match=r"is a folder; give the name of a file, such as .*report\.html"
    ):
        page.write(tmp_path, small)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        page.write(path, Page("other", "q", "a"))
    assert path.read_text(encoding="utf-8") == page.render(small)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
