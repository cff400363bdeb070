"""Softmax regression on handwritten digits: the model, local training, and a public test set."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from sklearn.datasets import load_digits

TEST = 360  # images of no client, for evaluation


def record(model):
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def arrays(record):
    return {name: array.numpy() for name, array in record.items()}


def initial_model():
    return {"weight": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}


@cache
def examples():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return (x[order] / 16).astype(np.float32), y[order]


def partition(client, clients):
    """The images of client ``client`` of ``clients``."""
    x, y = examples()
    return x[TEST:][client::clients], y[TEST:][client::clients]


def probabilities(model, x):
    logits = x @ model["weight"] + model["bias"]
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def fit(model, x, y, epochs=5, learning_rate=0.5):
    """A few steps of gradient descent on the client's images."""
    for _ in range(epochs):
        error = probabilities(model, x) - np.eye(10, dtype=np.float32)[y]
        model["weight"] = model["weight"] - np.float32(learning_rate / len(y)) * (x.T @ error)
        model["bias"] = model["bias"] - np.float32(learning_rate / len(y)) * error.sum(axis=0)
    return model


def evaluate(server_round, record):
    """Accuracy on images of no client."""
    x, y = examples()
    predicted = probabilities(arrays(record), x[:TEST]).argmax(axis=1)
    return MetricRecord({"accuracy": float((predicted == y[:TEST]).mean())})
