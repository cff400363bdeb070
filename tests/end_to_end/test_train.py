"""Training on MNIST: the accuracy that mechanisms reach."""

from statistics import mean

import pytest

from antiphase import data
from antiphase.errors import DataError
from antiphase.torch.recipe import Recipe
from antiphase.torch.training import train

pytestmark = [pytest.mark.issue(7), pytest.mark.long]

SEEDS = range(3)


# antiphase train --data mnist --epochs 1 --batch-size 29 --lr 0.5 --clip 1 --delta 1e-6
OPTIONS = {"epochs": 1, "batch_size": 29, "learning_rate": 0.5, "clip_norm": 1.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def mnist():
    try:
        return data.load("mnist")
    except DataError as error:
        pytest.skip(f"no MNIST: {error}")


def accuracies(dataset, mechanism, epsilon):
    recipe = Recipe(mechanism=mechanism, epsilon=epsilon, **OPTIONS)
    made = [
        train(recipe, dataset, seed=seed, insecure_noise=7) for seed in SEEDS
    ]  # the same noise in every test
    assert all(trial.epsilon <= epsilon and trial.steps == 2069 for trial in made)
    return [trial.accuracy for trial in made], mean(trial.seconds for trial in made)


@pytest.mark.parametrize(("mechanism", "least"), [("dp-mf+", 0.885), ("dp-mf", 0.87)])
def test_mnist_at_epsilon_1(shown, mnist, mechanism, least):
    found, seconds = accuracies(mnist, mechanism, 1.0)
    shown(
        f"MNIST, logistic regression, ε = 1, {mechanism}",
        f"{mean(found):.4f}, mean of {[f'{a:.4f}' for a in found]}, {seconds:.1f} s each",
        f"≥ {least}",
    )
    assert mean(found) >= least


def test_mnist_at_epsilon_a_tenth(shown, mnist):
    plus, _ = accuracies(mnist, "dp-mf+", 0.1)
    plain, _ = accuracies(mnist, "dp-mf", 0.1)
    lead = mean(plus) - mean(plain)
    shown(
        "MNIST, logistic regression, ε = 0.1",
        f"dp-mf+ {mean(plus):.3f}, dp-mf {mean(plain):.3f}, {100 * lead:.1f} points apart",
        "dp-mf+ leads by ≥ 8 points",
    )
    assert lead >= 0.08
