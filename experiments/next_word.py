"""Next-word prediction: sentences as numbers, an LSTM, and what a user answers in federated averaging: for studies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Sentences = NDArray[np.int32]  # one a row: BEGIN, words, END if there is room for it, then nothing
Tensors = dict[str, NDArray[np.float32]]

NOTHING, BEGIN, END, UNKNOWN, FIRST = range(5)  # FIRST: the number of the commonest word
LENGTH = 20  # words of a sentence that count
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number."""

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The ``size`` commonest words (fewer if there are not as many), the commonest first."""
        counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        return cls({word: FIRST + i for i, word in enumerate(ranked)})

    def __len__(self) -> int:
        """How many numbers there are, those that are no words included."""
        return FIRST + len(self.numbers)

    def sentences(self, texts: Iterable[str], most: int) -> Sentences:
        """The first ``most`` sentences of the texts.

        >>> Vocabulary({"to": 4, "be": 5}).sentences(["To be. Be or"], most=9)[:, :5].tolist()
        [[1, 4, 5, 2, 0], [1, 5, 3, 2, 0]]
        """
        rows: list[list[int]] = []
        for text in texts:
            for sentence in SENTENCE.split(text.lower()):
                words = [self.numbers.get(word, UNKNOWN) for word in WORD.findall(sentence)]
                if words and len(rows) < most:
                    row = [BEGIN, *words[:LENGTH], END][: LENGTH + 1]
                    rows.append(row + [NOTHING] * (LENGTH + 1 - len(row)))
        return np.array(rows, np.int32).reshape(-1, LENGTH + 1)


class NextWord(nn.Module):
    """Embedding, LSTM, a projection, and a score for every word.

    With 10,000 words, ``embedding`` 96 and ``hidden`` 670 it has the paper's 4,050,748 parameters.
    """

    def __init__(self, words: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        nn.init.zeros_(
            self.lstm.get_parameter("bias_hh_l0").requires_grad_(False)
        )  # torch has two biases where one does
        self.projection = nn.Linear(hidden, embedding)
        self.scores = nn.Linear(embedding, words)

    @classmethod
    def seeded(cls, seed: int, words: int, embedding: int, hidden: int) -> NextWord:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return cls(words, embedding, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(inputs))
        scores: Tensor = self.scores(self.projection(states))
        return scores

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def arrays(self) -> Tensors:
        """A copy of what is trained."""
        return {name: p.detach().numpy().copy() for name, p in self.trained().items()}

    def load(self, model: Mapping[str, NDArray[Any]]) -> None:
        with torch.no_grad():
            for name, p in self.trained().items():
                p.copy_(torch.tensor(model[name]))


@dataclass(frozen=True)
class Client:
    """What a user does when asked: one epoch of plain SGD over the own sentences.

    Words outside the vocabulary are read, and not predicted.
    """

    net: NextWord
    learning_rate: float
    batch_size: int

    def update(self, model: Tensors, sentences: Sentences) -> Tensors:
        """The model after the epoch, minus the one before."""
        self.net.load(model)
        trained = list(self.net.trained().values())
        for start in range(0, len(sentences), self.batch_size):
            inputs, targets = _pairs(sentences[start : start + self.batch_size])
            asked = torch.where(targets == UNKNOWN, NOTHING, targets).flatten()
            if not asked.any():
                continue  # nothing to learn, and a mean of nothing is no number
            loss = nn.functional.cross_entropy(
                self.net(inputs).flatten(0, 1), asked, ignore_index=NOTHING
            )
            gradients = torch.autograd.grad(loss, trained)
            with torch.no_grad():
                for p, gradient in zip(trained, gradients, strict=True):
                    p.sub_(gradient, alpha=self.learning_rate)
        return {name: p.detach().numpy() - model[name] for name, p in self.net.trained().items()}


def accuracy(net: NextWord, sentences: Sentences, batch_size: int = 256) -> float:
    """The share of words that have the best score. Only words of the vocabulary count, not the end of a sentence."""
    right = asked = 0
    with torch.no_grad():
        for start in range(0, len(sentences), batch_size):
            inputs, targets = _pairs(sentences[start : start + batch_size])
            counts = targets >= FIRST
            right += int((net(inputs).argmax(dim=2) == targets)[counts].sum())
            asked += int(counts.sum())
    return right / max(asked, 1)


def commonest(sentences: Sentences) -> float:
    """The accuracy of saying the commonest word always."""
    words = sentences[:, 1:][sentences[:, 1:] >= FIRST]
    return float((words == FIRST).mean()) if len(words) else 0.0


def _pairs(sentences: Sentences) -> tuple[Tensor, Tensor]:
    """Each word and the one to predict from it, as far as the longest sentence goes."""
    longest = int((sentences != NOTHING).sum(axis=1).max())
    whole = torch.from_numpy(sentences[:, :longest].astype(np.int64))
    return whole[:, :-1], whole[:, 1:]
