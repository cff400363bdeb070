"""Recommended mechanisms for MNIST, with a spectrum from Fashion-MNIST."""

import math

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase import data
from antiphase.comparison import Setting
from antiphase.errors import DataError
from antiphase.recommendation import recommend
from antiphase.torch.models import build_model
from antiphase.torch.recipe import Recipe
from antiphase.torch.spectrum import spectrum
from antiphase.torch.training import train

pytestmark = [pytest.mark.issue(8), pytest.mark.long, pytest.mark.study]

TRAINING = {"epochs": 1, "batch_size": 29, "learning_rate": 0.5, "clip_norm": 1.0, "delta": 1e-6}


STEPS = 2069


GRID = [(rho, weight) for rho in (1.0, 0.9999, 0.999, 0.998) for weight in (1.0, math.sqrt(STEPS))]


def loaded(name):
    try:
        return data.load(name)
    except DataError as error:
        pytest.skip(f"no {name}: {error}")


@pytest.fixture(scope="module")
def estimated():
    """The spectrum of the clipped loss on 2,000 images of Fashion-MNIST, at the initial weights."""
    public = loaded("fashion-mnist").train
    some = np.random.default_rng(0).permutation(len(public))[:2000]
    inputs, targets = torch.from_numpy(public.inputs[some]), torch.from_numpy(public.targets[some])
    net = build_model("logistic", (1, 28, 28), 10)
    return spectrum(
        net, torch.nn.CrossEntropyLoss(), inputs, targets, clip_norm=TRAINING["clip_norm"], seed=0
    )


def advised_for_mnist(estimated, epsilon):
    optimizer = {"learning_rates": TRAINING["learning_rate"]}
    setting = Setting.of(STEPS, optimizer=optimizer, epsilon=epsilon, delta=1e-6, parameters=7840)
    return recommend(
        setting, spectrum=estimated, batch_size=TRAINING["batch_size"], initial_gap=math.log(10)
    )


def accuracies(rho, weight, epsilon, seeds, **changes):
    options = {"rho": rho, "final_weight": weight}
    recipe = Recipe(mechanism="damped", options=options, epsilon=epsilon, **(TRAINING | changes))
    return [train(recipe, loaded("mnist"), seed=seed, insecure_noise=7).accuracy for seed in seeds]


def test_mnist_at_epsilon_a_tenth_in_one_run(shown, estimated):
    """At ε = 0.1 the recommendation beats the damping that the largest curvature suggests."""
    found = advised_for_mnist(estimated, 0.1)
    top = 1 - 0.5 * TRAINING["learning_rate"] * estimated.top
    (good,), (bad,) = accuracies(*found.damping, 0.1, [0]), accuracies(top, 1.0, 0.1, [0])
    shown(
        f"MNIST, ε = 0.1, from Fashion-MNIST (curvatures up to {estimated.top:.2f}): "
        f"{found.best.label}",
        f"{good:.3f}; ρ = {top:.2f} from the largest curvature alone {bad:.3f}",
        "a spectrum is a better guide, by 20 points here",
    )
    assert good >= bad + 0.2


def paired(dampings, epsilons, seeds):
    """Accuracy of every design: the same batches and the same Z for all, so differences stand out.

    Logistic regression as in `train`: gradients are clipped in closed form, noise is C⁻¹Z.
    """
    mnist = loaded("mnist")
    inputs, targets = mnist.train.inputs.reshape(-1, 784), mnist.train.targets
    tests = mnist.test.inputs.reshape(-1, 784)
    batch, rate = TRAINING["batch_size"], TRAINING["learning_rate"]
    designs = [
        ap.design("damped", steps=STEPS, rho=rho, final_weight=weight) for rho, weight in dampings
    ]
    noising = [(f.sensitivity * f.noising()).astype(np.float32) for f in designs]
    found = {epsilon: np.zeros((len(seeds), len(dampings))) for epsilon in epsilons}
    for row, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(inputs))
        Z = rng.standard_normal((STEPS, 7840), dtype=np.float32)
        noise = np.stack([C @ Z for C in noising], axis=1).reshape(STEPS, len(dampings), 10, 784)
        for epsilon in epsilons:
            multiplier = np.float32(
                ap.calibrate(designs[0], epsilon=epsilon, delta=1e-6).noise_multiplier
            )
            W = np.zeros((len(dampings), 10, 784), np.float32)
            for t in range(STEPS):
                chosen = order[t * batch : (t + 1) * batch]
                x = inputs[chosen]
                p = (W.reshape(-1, 784) @ x.T).reshape(len(dampings), 10, -1)
                p = np.exp(p - p.max(axis=1, keepdims=True))
                p /= p.sum(axis=1, keepdims=True)
                p[:, targets[chosen], np.arange(len(chosen))] -= 1
                norms = np.linalg.norm(p, axis=1) * np.linalg.norm(x, axis=1)
                p /= np.maximum(norms, 1.0)[:, None]
                W -= np.float32(rate / batch) * (
                    (p.reshape(-1, len(chosen)) @ x).reshape(W.shape) + multiplier * noise[t]
                )
            found[epsilon][row] = [
                np.mean((tests @ w.T).argmax(axis=1) == mnist.test.targets) for w in W
            ]
    return found


def test_mnist_against_the_grid(shown, estimated):
    """ρ and the final weight as advised, against the best of the grid by training."""
    seeds = range(8)
    advices = {epsilon: advised_for_mnist(estimated, epsilon) for epsilon in (0.1, 1.0)}
    dampings = [*GRID, *(advice.damping for advice in advices.values())]
    found = paired(dampings, advices, seeds)
    for mine, (epsilon, values) in enumerate(found.items(), start=len(GRID)):
        advice, means = advices[epsilon], values.mean(axis=0)
        cost = means[: len(GRID)].max() - means[mine]
        table = ", ".join(
            f"({r:g}, {w:.3g}) {m:.4f}" for (r, w), m in zip(GRID, means[: len(GRID)], strict=True)
        )
        shown(
            f"MNIST, ε = {epsilon}, {len(seeds)} paired trainings each; advised "
            f"{advice.best.label}, (ρ, final weight) "
            f"= {advice.damping}",
            f"{means[mine]:.4f}, {100 * cost:.2f} points below the best of the grid: {table}",
            "less than half a point",
        )
        assert cost < 0.005
        # the loop above is `train`: the same accuracy, for the advised design and another
        for place in (mine, GRID.index((1.0, 1.0))):
            ours = accuracies(*dampings[place], epsilon, range(3))
            error = values[:, place].std(ddof=1) * math.sqrt(1 / 3 + 1 / len(seeds))
            off = (np.mean(ours) - means[place]) / error
            shown(
                f"train() itself, {dampings[place]}",
                f"{np.mean(ours):.4f}, {off:+.1f} standard errors",
                "≤ 4",
            )
            assert abs(off) <= 4


def test_mnist_at_the_learning_rate_that_is_advised(shown, estimated):
    """The middle of the recommended range does no worse than a given rate outside of it."""
    advice = advised_for_mnist(estimated, 0.1)
    given, best = TRAINING["learning_rate"], advice.learning_rates.best
    there = np.mean(accuracies(*advice.damping, 0.1, range(3), learning_rate=best))
    here = np.mean(accuracies(*advice.damping, 0.1, range(3)))
    shown(
        f"MNIST, ε = 0.1, advised rates {advice.learning_rates.low:.3g} to "
        f"{advice.learning_rates.high:.3g}",
        f"{there:.3f} at {best:.3g}, {here:.3f} at {given}",
        "no worse",
    )
    assert advice.learning_rates.high < given
    assert there >= here
