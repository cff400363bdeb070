"""Next-word prediction: a vocabulary, an LSTM, and the client of federated averaging."""

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

Sentences = NDArray[np.int32]  # one per row: BEGIN, words, END if there is room, then padding
Tensors = dict[str, NDArray[np.float32]]

PADDING, BEGIN, END, UNKNOWN, FIRST = range(5)  # FIRST: the token of the most frequent word
LENGTH = 20  # words; longer sentences are cut
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a token."""

    tokens: Mapping[str, int]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The ``size`` most frequent words of the texts, or all if there are fewer."""
        counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        return cls({word: FIRST + i for i, word in enumerate(ranked)})

    def __len__(self) -> int:
        """Number of tokens, including those that are not words."""
        return FIRST + len(self.tokens)

    def sentences(self, texts: Iterable[str], limit: int) -> Sentences:
        """The first ``limit`` sentences of the texts, as tokens.

        >>> Vocabulary({"to": 4, "be": 5}).sentences(["To be. Be or"], limit=9)[:, :5].tolist()
        [[1, 4, 5, 2, 0], [1, 5, 3, 2, 0]]
        """
        rows: list[list[int]] = []
        for text in texts:
            for sentence in SENTENCE.split(text.lower()):
                words = [self.tokens.get(word, UNKNOWN) for word in WORD.findall(sentence)]
                if words and len(rows) < limit:
                    row = [BEGIN, *words[:LENGTH], END][: LENGTH + 1]
                    rows.append(row + [PADDING] * (LENGTH + 1 - len(row)))
        return np.array(rows, np.int32).reshape(-1, LENGTH + 1)


class NextWord(nn.Module):
    """Embedding, LSTM, projection, and a score for every token.

    With 10,000 words, ``embedding`` 96 and ``hidden`` 670 it has the paper's 4,050,748 parameters.
    """

    def __init__(self, words: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        # torch has two biases where one is enough
        nn.init.zeros_(self.lstm.get_parameter("bias_hh_l0").requires_grad_(False))
        self.projection = nn.Linear(hidden, embedding)
        self.scores = nn.Linear(embedding, words)

    @classmethod
    def seeded(cls, seed: int, words: int, embedding: int, hidden: int) -> NextWord:
        """A network whose initial weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return cls(words, embedding, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of the next token after each token."""
        states, _ = self.lstm(self.embedding(inputs))
        scores: Tensor = self.scores(self.projection(states))
        return scores

    def trained(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def arrays(self) -> Tensors:
        """Copies of the trainable parameters."""
        return {name: p.detach().numpy().copy() for name, p in self.trained().items()}

    def load(self, model: Mapping[str, NDArray[Any]]) -> None:
        """Set the trainable parameters."""
        with torch.no_grad():
            for name, p in self.trained().items():
                p.copy_(torch.tensor(model[name]))


@dataclass(frozen=True)
class Client:
    """A user's update: one epoch of SGD over their own sentences.

    Words outside the vocabulary are inputs, but not targets.
    """

    net: NextWord
    learning_rate: float
    batch_size: int

    def update(self, model: Tensors, sentences: Sentences) -> Tensors:
        """The model after the epoch minus the model before."""
        self.net.load(model)
        trained = list(self.net.trained().values())
        for start in range(0, len(sentences), self.batch_size):
            inputs, targets = _pairs(sentences[start : start + self.batch_size])
            known = torch.where(targets == UNKNOWN, PADDING, targets).flatten()
            if not known.any():
                continue  # without targets the mean loss is NaN
            loss = nn.functional.cross_entropy(
                self.net(inputs).flatten(0, 1), known, ignore_index=PADDING
            )
            gradients = torch.autograd.grad(loss, trained)
            with torch.no_grad():
                for p, gradient in zip(trained, gradients, strict=True):
                    p.sub_(gradient, alpha=self.learning_rate)
        return {name: p.detach().numpy() - model[name] for name, p in self.net.trained().items()}


def accuracy(net: NextWord, sentences: Sentences, batch_size: int = 256) -> float:
    """The share of words predicted; only words of the vocabulary count, not ends of sentences."""
    right = total = 0
    with torch.no_grad():
        for start in range(0, len(sentences), batch_size):
            inputs, targets = _pairs(sentences[start : start + batch_size])
            counts = targets >= FIRST
            right += int((net(inputs).argmax(dim=2) == targets)[counts].sum())
            total += int(counts.sum())
    return right / max(total, 1)


def most_frequent_accuracy(sentences: Sentences) -> float:
    """The accuracy of always predicting the most frequent word."""
    words = sentences[:, 1:][sentences[:, 1:] >= FIRST]
    return float((words == FIRST).mean()) if len(words) else 0.0


def _pairs(sentences: Sentences) -> tuple[Tensor, Tensor]:
    """Inputs and targets, cut to the longest sentence."""
    longest = int((sentences != PADDING).sum(axis=1).max())
    tokens = torch.from_numpy(sentences[:, :longest].astype(np.int64))
    return tokens[:, :-1], tokens[:, 1:]
