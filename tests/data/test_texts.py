"""Texts of many users, from JSON lines."""

import gzip
import json

import pytest

from antiphase import data
from antiphase.data.dataset import user_split
from antiphase.data.texts import parse
from antiphase.errors import DataError

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
    assert (texts.name, texts.digest) == ("mine.jsonl", parse("", written(LINES)).digest)


def test_users_without_a_split_get_one_by_their_names():
    """80 : 10 : 10, within four standard deviations of as many coins."""
    texts = parse("mine", written([{"user": f"u{i}", "text": "ay"} for i in range(20_000)]))
    assert all(user_split(user) == "val" for user in texts.val)
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
        parse("mine", written(LINES) + b"\n" + line)
    assert said in str(caught.value)


def test_a_split_without_users_is_refused():
    with pytest.raises(DataError, match="mine has no users in test"):
        parse("mine", written(LINES[:2]))


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
    with pytest.raises(DataError, match="leave it out"):
        data.load_texts(cut, folder=tmp_path)
