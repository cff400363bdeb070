"""The registry agrees with docs/data.md, and every download is verified by a hash."""

import re
from pathlib import Path

from antiphase import data
from antiphase.data.registry import REGISTRY, SHAKESPEARE

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_example_of_the_page_runs():
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})  # noqa: S102


def test_every_name_is_in_the_table_of_the_page():
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE) == list(data.names())
    for dataset in (*REGISTRY.values(), SHAKESPEARE):
        package = dataset.archives[-1].name
        assert f"`{re.split(r'[-_][0-9]', package)[0]}`" in PAGE


def test_every_file_has_a_hash_and_so_has_every_archive_that_is_converted():
    """Code that builds files, such as Pillow's PNG decoder, sees no archive but the known one."""
    for dataset in (*REGISTRY.values(), SHAKESPEARE):
        hashes = [file.sha256 for file in dataset.files]
        hashes += [archive.sha256 for archive in dataset.archives if archive.convert is not None]
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in hashes)


def test_every_source_of_a_data_set_has_all_its_files():
    for dataset in (*REGISTRY.values(), SHAKESPEARE):
        names = {file.name for file in dataset.files}
        sources = list(dataset.sources())
        assert sources
        for downloads in sources:
            assert names == {name for item in downloads for name in item.files}
