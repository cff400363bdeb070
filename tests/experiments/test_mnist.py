"""The study of MNIST at small size: its loop equals the engine's; figures come from the record."""

import json
import math

import numpy as np
import pytest
import torch

from antiphase import data
from antiphase.torch.spectrum import spectrum
from experiments import accuracies, linear_training, mnist, runner
from tests.experiments.engine_training import by_engine, linear, reference_loss, sampled_by_engine

SMALL = {
    "steps": 28,
    "epochs": 4,
    "batch_size": 60,
    "trials": 2,
}  # 400 examples: 7 batches an epoch, the last short


def cell(mechanism, **more):
    return mnist.COMMON | {"mechanism": mechanism, "epsilons": [2.0, 8.0]} | SMALL | more


KINDS = {
    "dp-sgd": {},
    "dp-mf": {},
    "dp-mf+": {"tau": 7},
    "dp-mf+, all": {"tau": 28},
    "one epoch": {"steps": 7, "epochs": 1},
    "not all of an epoch": {"steps": 5, "epochs": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_equals_the_engine(images, kind):
    """The engine designs and calibrates by itself; batches, noise and clipping come out alike."""
    name = kind.split(",")[0] if kind.startswith("dp-") else "dp-mf+"
    small = cell(name, **KINDS[kind])
    ours = mnist.trained(small, mnist.mechanisms(small), trial=1)
    for epsilon, weights in zip(small["epsilons"], ours, strict=True):
        assert np.abs(weights).max() > 0.01
        np.testing.assert_allclose(weights, by_engine(small, epsilon, trial=1), rtol=0, atol=1e-6)


def test_the_loop_on_poisson_samples_equals_opacus(images):
    engine, ours = sampled_by_engine(cell("dp-sgd", poisson=True), trial=0, multiplier=0.5)
    assert np.abs(ours).max() > 0.01
    np.testing.assert_allclose(ours, engine, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_training_without_noise_clips_all_the_same(images):
    """Clipping alone, and plain SGD, against torch's own gradients."""
    seen, _ = mnist.examples()
    for kind, clip_norm in (("none", None), ("clipped", 1.0)):
        (ours,) = mnist.trained(cell(kind), [], trial=0)
        model = linear()
        targets = torch.from_numpy(images.train.targets)
        for batch in mnist.batches_of(cell(kind), trial=0):
            total = torch.zeros_like(model.weight)
            for i in batch:
                model.zero_grad()
                reference_loss(
                    model(torch.from_numpy(seen.inputs[i : i + 1])), targets[i : i + 1]
                ).backward()
                gradient = model.weight.grad
                total += (
                    gradient
                    if clip_norm is None
                    else gradient / max(float(gradient.norm()) / clip_norm, 1.0)
                )
            model.weight.data -= 0.5 / 60 * total
        np.testing.assert_allclose(ours, model.weight.detach().numpy(), rtol=0, atol=2e-5)


def test_an_example_without_a_gradient_is_kept():
    """All pixels 0: nothing to clip, nothing to divide by."""
    split = data.Split(np.zeros((3, 1, 2, 2), np.float32), np.array([0, 1, 2]))
    weights = linear_training.train(
        linear_training.Examples.of(split, 3),
        [[0, 1, 2]],
        None,
        learning_rate=1.0,
        divisor=3,
        clip_norm=1.0,
    )
    assert (weights == 0).all()


def test_accuracy_counts_the_reference_class():
    split = data.Split(np.eye(3, dtype=np.float32), np.array([0, 1, 2]))
    seen = linear_training.Examples.of(split, 3)
    assert seen.accuracy(np.array([[1, -1, -1], [-1, 1, -1]], np.float32)) == 1.0
    assert seen.accuracy(np.array([[1, -1, 1], [-1, 1, -1]], np.float32)) == pytest.approx(2 / 3)


def test_the_public_spectrum_is_that_of_the_loss(images):
    """By Lanczos, at the weights where training begins, each example weighed as it is clipped."""
    exactly = mnist.public_spectrum(1.0, count=400)
    inputs, targets = (
        torch.from_numpy(images.train.inputs.reshape(400, -1)),
        torch.from_numpy(images.train.targets),
    )
    order = np.random.default_rng(0).permutation(400)
    found = spectrum(
        linear(), reference_loss, inputs[order], targets[order], clip_norm=1.0, count=16
    )
    assert (exactly.dimension, found.dimension) == (7056, pytest.approx(7056))
    assert exactly.top == pytest.approx(found.top, rel=1e-4)
    assert exactly.mean == pytest.approx(found.mean, rel=0.15)


# ---- the whole study, in small -------------------------------------------------------------------


def test_cells_cover_every_training_of_the_paper():
    """There are 820 trainings.

    640 of the paper's mechanisms, 80 each of DP-SGD without amplification and of the recommended
    mechanism, 20 without noise.
    """
    cells = mnist.cells(full=False)
    assert cells == mnist.cells(full=True)
    assert len({json.dumps(one, sort_keys=True) for one in cells}) == len(cells)
    runs = sum(one["trials"] * len(one.get("epsilons", [0])) for one in cells)
    assert runs == 2 * 8 * 5 * (1 + 1 + 6 + 1 + 1) + 20 == 820


def made_up(one):
    """A result as `work` returns it, better with ε and τ."""

    def accuracies(epsilon):
        return [
            0.5 + 0.05 * math.log10(epsilon) + 0.01 * math.log2(one.get("tau", 2)) + 0.001 * i
            for i in range(5)
        ]

    if "epsilons" not in one:
        return {"accuracies": accuracies(1000)}
    return {
        "private": [{"accuracies": accuracies(e)} for e in one["epsilons"]],
        "design": "<a design>",
    }


@pytest.mark.slow
def test_tables_and_figures_come_from_the_record(tmp_path):
    found = [(one, made_up(one)) for one in mnist.cells(full=False)]
    record = json.loads(json.dumps({"summary": mnist.summary(found, full=False), "settings": {}}))
    once, often = record["summary"]["settings"]
    assert (once["batch_size"], often["batch_size"]) == (29, 469)
    assert record["summary"]["runs"] == 820
    assert list(once["accuracy"]) == mnist.LABELS
    assert list(once["accuracy"][mnist.MF]) == [f"{e:g}" for e in mnist.EPSILONS]
    mean, error = once["accuracy"][mnist.MF]["1"]
    assert (mean, error) == (pytest.approx(0.512), pytest.approx(0.001 * math.sqrt(2.5 / 5)))
    gain = once["DP-MF⁺ over DP-MF"]["1"]
    assert gain == [pytest.approx(0.10), pytest.approx(error * math.sqrt(2))]
    assert [accuracies.verdict(g) for g in (gain, [-0.1, 0.01], [0.01, 0.01])] == [
        "better",
        "worse",
        "alike",
    ]
    paths = mnist.draw(record, tmp_path)
    assert sorted(p.name for p in paths if p.suffix == ".png") == [
        "mnist-1-tau.png",
        "mnist-1.png",
        "mnist-16-tau.png",
        "mnist-16.png",
    ]
    table = mnist.tables(record)[0]
    assert [row[0] for row in table.rows] == mnist.LABELS
    assert "51.2 ± 0.1" in table.rows[2]


def test_a_cell_is_json_and_repeats(images):
    for kind in ("dp-mf", "none"):
        small = (
            cell(kind)
            if kind != "none"
            else {k: v for k, v in cell(kind).items() if k != "epsilons"}
        )
        once, again = (json.loads(runner._json(mnist.work(small))) for _ in range(2))
        assert once == again
        accuracies = (
            [once["accuracies"]] if kind == "none" else [p["accuracies"] for p in once["private"]]
        )
        assert all(len(trials) == SMALL["trials"] for trials in accuracies)
        assert all(p["epsilon"] <= 8.0 for p in once.get("private", []))


@pytest.mark.slow
def test_recommended_and_sampled_mechanisms_are_calibrated(images):
    """The recommended design is calibrated like the others; sampling lowers the noise of DP-SGD."""
    advised = mnist.mechanisms(cell("advised"))
    assert [m.epsilon() <= e for m, e in zip(advised, (2.0, 8.0), strict=True)] == [True, True]
    assert advised[0].factorization.name in ("damped", "dp-mf", "dp-mf+")
    (sampled,) = mnist.mechanisms(cell("dp-sgd", poisson=True, epsilons=[2.0]))
    (fixed,) = mnist.mechanisms(cell("dp-sgd", epsilons=[2.0]))
    assert sampled.amplified
    assert sampled.epsilon() <= 2.0
    assert sampled.noise_scale < fixed.noise_scale
