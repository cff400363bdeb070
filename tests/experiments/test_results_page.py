"""docs/results.md: every claim has a verdict, and every figure exists and is small."""

import re
from pathlib import Path

from experiments import NAMES

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "results.md").read_text()


def test_every_claim_has_numbers_and_a_verdict():
    section = TEXT.partition("\n## Claims")[2].partition("\n## ")[0]
    claims = [line.split(" | ") for line in section.splitlines() if re.match(r"\| \d+ \| ", line)]
    assert [int(cells[0].strip("| ")) for cells in claims] == list(range(1, len(claims) + 1))
    assert len(claims) >= 14
    for number, said, ours, verdict in claims:
        assert said
        assert re.search(r"\d", ours), number
        assert verdict.rstrip(" |") in ("reproduced", "in part", "not reproduced"), number


def test_every_figure_exists_and_is_small():
    shown = re.findall(
        r"!\[([^]]+)\]\((figures/[\w.-]+)\)", TEXT + (DOCS / "benchmarks.md").read_text()
    )
    assert {name for _, name in shown} == {
        f"figures/{path.name}" for path in (DOCS / "figures").iterdir()
    }
    for words, name in shown:
        assert words
        assert (DOCS / name).stat().st_size < 300_000, name


def test_every_study_has_its_section():
    for name in NAMES:
        assert f"python -m experiments {name}`" in TEXT, name
