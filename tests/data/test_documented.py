"""What docs/data.md shows runs, and names what the catalogue has."""

import re
from pathlib import Path

from antiphase import data
from antiphase.data.sources import CATALOGUE

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_example_runs():
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})  # noqa: S102


def test_every_name_is_in_the_table():
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE) == list(data.names())
    for known in CATALOGUE.values():
        assert known.package.name.partition("@")[0] in PAGE
        assert data.STATISTICS[known.name] == (known.mean, known.std)


def test_every_hash_is_one_and_no_mirror_is_trusted_without_it():
    for known in CATALOGUE.values():
        assert known.mirrors
        for source in known.files:
            assert re.fullmatch("[0-9a-f]{64}", source.sha256)
