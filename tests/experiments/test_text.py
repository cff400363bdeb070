"""The study of next-word prediction at small size: sentences, network, cells, figures."""

import json

import numpy as np
import pytest
import torch

from antiphase import data
from antiphase.errors import DataError
from antiphase.federated import Server
from antiphase.noise.key import Key
from experiments import next_word, runner, text
from experiments.next_word import Client, NextWord, Vocabulary

SMALL = {"rounds": 4, "words": 30, "embedding": 4, "hidden": 5, "sentences": 6}
VERSES = "the king is dead. long live the king! the queen will live long and the king will not"


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Thirty users who say much the same, in a file of JSON lines that the study is pointed to."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(30):
        split = {0: "val", 1: "test"}.get(number % 10, "train")
        for _ in range(3):
            said = " ".join(rng.permutation(VERSES.split()))
            lines.append(json.dumps({"user": f"u{number}", "text": said, "split": split}))
    path = tmp_path / "users.jsonl"
    path.write_text("\n".join(lines))
    monkeypatch.setenv(text.SOURCE, str(path))
    monkeypatch.setitem(text.SIZES, False, SMALL)
    for cached in (text._texts, text._users):
        cached.cache_clear()
    yield data.load_texts(path)
    for cached in (text._texts, text._users):
        cached.cache_clear()


# ---- sentences and network -----------------------------------------------------------------------


def test_the_vocabulary_has_the_most_frequent_words_first():
    made = Vocabulary.of(["b a b", "a b c"], 2)
    assert dict(made.tokens) == {"b": 4, "a": 5}
    assert len(made) == 6
    assert made.sentences(["A! c. B"], limit=2)[:, :4].tolist() == [[1, 5, 2, 0], [1, 3, 2, 0]]


def test_a_long_sentence_is_cut_and_has_no_end():
    (row,) = Vocabulary({"a": 4}).sentences(["a " * 50], limit=9)
    assert row.tolist() == [1] + [4] * 20


def test_the_network_is_the_papers():
    """4,050,748 parameters; ours for 1,000 words has 92,172."""
    sizes = {
        full: {k: v for k, v in text.SIZES[full].items() if k in ("embedding", "hidden")}
        for full in (True, False)
    }
    assert sum(p.numel() for p in NextWord(10_004, **sizes[True]).trained().values()) == 4_050_748
    assert sum(p.numel() for p in NextWord(1004, **sizes[False]).trained().values()) == 92_172


def test_a_user_of_one_batch_takes_one_step_of_sgd():
    """Along the gradient of the mean loss over the words asked for; unknown ones are not."""
    net = NextWord.seeded(0, 9, 4, 5)
    model = net.arrays()
    sentences = np.array([[1, 4, 3, 5, 2] + [0] * 16, [1, 6, 2] + [0] * 18], np.int32)
    update = Client(net, 0.5, batch_size=8).update(model, sentences)
    other = NextWord.seeded(0, 9, 4, 5)
    scores = other(torch.tensor([[1, 4, 3, 5], [1, 6, 2, 0]]))
    targets = [(0, 0, 4), (0, 2, 5), (0, 3, 2), (1, 0, 6), (1, 1, 2)]
    loss = -sum(scores[row, place].log_softmax(0)[word] for row, place, word in targets) / len(
        targets
    )
    loss.backward()
    for name, p in other.trained().items():
        np.testing.assert_allclose(update[name], -0.5 * p.grad.numpy(), atol=1e-6)


def test_a_user_without_a_word_to_predict_changes_nothing():
    net = NextWord.seeded(0, 9, 4, 5)
    client = Client(net, 0.5, batch_size=8)
    for sentences in (np.zeros((0, 21), np.int32), np.array([[1] + [3] * 20], np.int32)):
        assert not any(update.any() for update in client.update(net.arrays(), sentences).values())


def test_accuracy_counts_words_alone():
    """A network that always predicts word 5; ends and unknown words do not count."""
    net = NextWord.seeded(0, 9, 4, 5)
    with torch.no_grad():
        net.scores.weight.zero_()
        net.scores.bias.zero_()[5] = 1
    sentences = np.array([[1, 4, 5, 3, 2] + [0] * 16, [1, 5, 2] + [0] * 18], np.int32)
    assert next_word.accuracy(net, sentences) == pytest.approx(2 / 3)
    assert next_word.most_frequent_accuracy(sentences) == pytest.approx(1 / 3)


# ---- the study -----------------------------------------------------------------------------------


def test_the_cells(users):
    """Five designs at five noises, as they are and projected, two trials; and without noise."""
    found = text.cells(full=False)
    assert len(found) == 2 * (2 * 5 * 5 + 1)
    assert len({json.dumps(cell, sort_keys=True) for cell in found}) == len(found)
    assert text.clients(found[0]) == 24 // 4
    with pytest.raises(DataError, match="24 users to train, and 2048 rounds"):
        text.cells(full=True)


def test_a_changed_file_is_refused(users, tmp_path):
    cell = text.cells(full=False)[0]
    (tmp_path / "users.jsonl").write_text(
        (tmp_path / "users.jsonl").read_text().replace("king", "fool")
    )
    text._texts.cache_clear()
    with pytest.raises(runner.StudyError, match="has changed since the study began"):
        text.work(cell)


def test_projected_noise_is_that_of_a_mean_over_167(users):
    """The noise in a mean over 6 users is that of a mean over 167; there is no ε for it."""
    cells = [
        c
        for c in text.cells(full=False)
        if c["mechanism"] == "tree" and c["noise_multiplier"] == 1.364
    ]
    honest, projected = (next(c for c in cells if c["projected"] is p) for p in (False, True))
    size = text.clients(honest)
    assert text.mechanism(honest).noise_multiplier == 1.364
    assert text.mechanism(projected).noise_scale / size == pytest.approx(
        text.mechanism(honest).noise_scale / 167
    )
    assert text.work(projected)["epsilon"] is None
    assert text.work(honest)["epsilon"] == pytest.approx(3.44, abs=0.005)


def test_the_server_is_the_workload_that_is_predicted(users):
    """With zero updates the last model is the noise through the optimizer, B Z with B = A C⁻¹."""
    cell = next(c for c in text.cells(full=False) if c["mechanism"] == "dp-mf")
    made, path = text.mechanism(cell), []
    start = {"x": np.zeros(20_000, np.float32)}
    with Server(
        made, start, clients_per_round=6, workload=text.workload(cell), key=Key.insecure(1)
    ) as server:
        for _ in range(SMALL["rounds"]):
            server.begin_round([])
            path.append(server.finish_round()["x"])
    total, last = text._errors(cell)
    scale = (made.noise_multiplier * made.clip_norm / 6) ** 2
    assert np.mean(path[-1] ** 2) == pytest.approx(scale * last, rel=0.05)
    assert np.mean(np.square(path), axis=1).sum() == pytest.approx(scale * total, rel=0.05)


@pytest.mark.slow
def test_matching_the_workload_lowers_the_predicted_error():
    """At the study's size: at least a fifth less squared noise than the prefix-sum design."""
    cell = text.COMMON | text.SIZES[False] | {"rate": 1.0}
    errors = [text._errors(cell | design) for design in text.DESIGNS]
    by = dict(zip(text.LABELS.values(), errors, strict=True))
    assert by[text.MATCHED][0] <= 0.8 * by[text.MF][0]
    assert by[text.ADVISED][1] <= 0.8 * by[text.PLUS][1]
    assert by[text.TREE][0] >= by[text.MF][0]


def test_work_repeats(users):
    """Users, network and noise are functions of the seed."""
    cell = next(c for c in text.cells(full=False) if c["noise_multiplier"] == 5.456) | {
        "rate": 20.0
    }
    first, again, other = (text.work(c) for c in (cell, cell, cell | {"seed": 2}))
    assert first == again
    assert first["on the way"] != other["on the way"]
    assert len(first["on the way"]) == 4
    json.dumps(first, allow_nan=False)


@pytest.mark.slow
def test_tables_and_figures_from_the_record(users, tmp_path):
    """Tables mark projections and collapses, and have an ε only without projection."""

    def made(cell):
        accuracy = 0.2 / (1 + cell["noise_multiplier"]) + 0.01 * cell["seed"]
        return {
            "accuracy": accuracy,
            "validation": accuracy,
            "on the way": [0.1, accuracy],
            "commonest word": 0.05,
            "parameters": 92_172,
            "epsilon": None,
            "error": [100.0, 10.0],
        }

    found = [(cell, made(cell)) for cell in text.cells(full=False)]
    summed = json.loads(json.dumps(text.summary(found, False)))
    assert [round(e, 2) for e in summed["epsilons"].values()] == [17.65, 7.6, 3.44, 1.61, 0.76]
    assert summed["users that the projection would need"] == 4 * 167
    assert summed["as it is"]["by"][text.PLUS]["5.456"]["collapsed"] == 1
    record = {"summary": summed, "settings": found[0][0], "full": False}
    tables = text.tables(record)
    assert [("ε" in " ".join(table.headings)) for table in tables] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert tables[0].rows[1][0] == "DP-MF"
    assert tables[0].rows[1][-1].endswith("(1↓)")
    assert "claims no privacy" in tables[2].note
    assert {path.name for path in text.draw(record, tmp_path)} >= {"text.svg", "text-projected.svg"}


def test_the_learning_rate_is_chosen_on_validation_users():
    """Not on those that are reported; and a trial below the commonest word counts as collapsed."""

    def pair(rate, validation, accuracy):
        return {"rate": rate}, {
            "validation": validation,
            "accuracy": accuracy,
            "on the way": [0.1],
            "commonest word": 0.05,
        }

    best = text._best(
        [pair(1.0, 0.2, 0.01), pair(1.0, 0.2, 0.11), pair(2.0, 0.1, 0.5), pair(2.0, 0.1, 0.5)]
    )
    assert (best["rate"], best["collapsed"], best["trials"]) == (1.0, 1, [0.01, 0.11])
