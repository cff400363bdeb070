"""The studies of CIFAR-10 at small size: features, loops, tuning, tables and figures."""

import json

import numpy as np
import pytest

import antiphase as ap
from antiphase import data
from experiments import (
    accuracies,
    cifar10,
    linear_training,
    scattering,
    scattering_features,
    subsampled_training,
)
from experiments.learning_rates import cached_training

SMALL = {"steps": 8, "epochs": 2, "batch_size": 10}


@pytest.fixture
def images(monkeypatch):
    """Forty images of ten classes, and twenty to test."""
    rng = np.random.default_rng(0)
    centres = rng.random((10, 3, 32, 32), dtype=np.float32)

    def split(count):
        targets = np.arange(count) % 10
        noise = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
        return data.Split(np.clip(centres[targets] + 0.2 * noise, 0, 1), targets)

    made = data.Dataset("images", split(40), split(20), tuple("0123456789"), (0.5,) * 3, (0.3,) * 3)
    monkeypatch.setattr(data, "load", lambda name: made)
    for cached in (cifar10._images, scattering.examples):
        cached.cache_clear()
    yield made
    for cached in (cifar10._images, scattering.examples):
        cached.cache_clear()


@pytest.fixture
def poisson(monkeypatch):
    """Calibration takes seconds for each ε, and has its own tests; what it is asked for is kept."""
    asked = []

    def multiplier(epsilon, delta, *, sampling_rate, steps):
        asked.append((epsilon, delta, sampling_rate, steps))
        return 0.7

    monkeypatch.setattr(cifar10.accounting, "poisson_noise_multiplier", multiplier)
    cifar10._poisson_noise_multiplier.cache_clear()
    yield asked
    cifar10._poisson_noise_multiplier.cache_clear()


# ---- features ------------------------------------------------------------------------------------


def test_wavelets_of_a_flat_image_vanish():
    psi = scattering_features.morlets(40)
    assert psi.shape == (16, 40, 40)
    assert np.abs(psi[:, 0, 0]).max() < 1e-6
    assert (psi > 0.5).any(axis=(1, 2)).all()  # and each sees something


def test_wavelets_cover_the_frequency_plane():
    """Every frequency between the coarsest and the finest scale passes some filter."""
    power = (scattering_features.morlets(64) ** 2).sum(axis=0)
    y, x = np.meshgrid(
        2 * np.pi * np.fft.fftfreq(64), 2 * np.pi * np.fft.fftfreq(64), indexing="ij"
    )
    radius = np.hypot(x, y)
    ring = (power + np.roll(power[::-1, ::-1], 1, (0, 1)))[
        (radius > 0.8) & (radius < 2.4)
    ]  # |ω| and −|ω| alike
    assert ring.min() > 0.3
    assert ring.max() < 8 * ring.min()


def test_a_grating_excites_its_orientation():
    """A grating excites the scale of its frequency and the orientation across its lines most."""
    angle = np.pi * 3 / 8
    y, x = np.mgrid[:32, :32]
    grating = np.cos(0.75 * np.pi * (np.cos(angle) * x + np.sin(angle) * y))
    images = np.broadcast_to(grating, (1, 3, 32, 32)).astype(np.float32)
    maps = scattering_features.features(images).reshape(scattering_features.MAPS, -1).mean(axis=1)
    for colour in range(3):
        assert maps[3 + 16 * colour :][:16].argmax() == 3


def test_features_have_unit_norm_and_ignore_contrast(images):
    found = scattering_features.features(images.train.inputs)
    assert found.shape == (40, scattering_features.FEATURES) == (40, 1840)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    fainter = scattering_features.features(0.5 * images.train.inputs + np.float32(0.2))
    assert (found * fainter).sum(
        axis=1
    ).min() > 0.98  # all but what tells a faint image from a flat one
    black = scattering_features.features(np.zeros((1, 3, 32, 32), np.float32))
    assert np.isfinite(black).all()


def test_features_depend_on_their_image_alone(images):
    """Whatever else is computed with it."""
    together = scattering_features.features(images.train.inputs[:7])
    np.testing.assert_allclose(
        scattering_features.features(images.train.inputs[3:4])[0], together[3], atol=1e-6
    )


# ---- loops ---------------------------------------------------------------------------------------


def test_models_side_by_side_equal_models_trained_alone():
    """Each of several models is the one that `loop.train` makes at its rate, with its noise."""
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((60, 12), dtype=np.float32)
    seen = linear_training.Examples.of(data.Split(inputs, np.arange(60) % 5), 5)
    batches = [rng.permutation(60)[:20] for _ in range(30)]
    rows = rng.standard_normal((30, 4, 12), dtype=np.float32)
    rates, scales = np.array([0.1, 0.5, 2.0], np.float32), np.array([0.0, 3.0, 0.5], np.float32)
    several = scattering.side_by_side(
        seen, batches, iter(rows), rates=rates, scales=scales, divisor=20, clip_norm=1.0
    )
    for weights, rate, scale in zip(several, rates, scales, strict=True):
        alone = linear_training.train(
            seen, batches, iter(scale * rows), learning_rate=float(rate), divisor=20, clip_norm=1.0
        )
        np.testing.assert_allclose(weights, alone.reshape(weights.shape), rtol=0, atol=2e-5)


def test_noise_multipliers_are_the_papers(poisson):
    """For whole batches, T = 2000 and 20 epochs; DP-SGD with its amplification."""
    cells = {name: cifar10.COMMON | {"mechanism": name, "epsilon": 8.0} for name in cifar10.OPTIONS}
    for name in ("dp-mf", "dp-mf+", "damped"):
        assert cifar10.noise_multiplier(cells[name]) == ap.accounting.gaussian_noise_multiplier(
            8.0, 1e-6
        )
    assert cifar10.noise_multiplier(cells["dp-sgd"]) == 0.7
    assert poisson == [(8.0, 1e-6, 0.01, 2000)]


# ---- tuning --------------------------------------------------------------------------------------


def test_the_rate_with_the_lowest_training_error_is_taken(monkeypatch, cache):
    tried = []

    def trained(cell):
        tried.append((cell["stage"], cell["seed"], cell["rate"]))
        return {"training error": abs(cell["rate"] - 0.2), "accuracy": 0.5, "finite": True}

    monkeypatch.setattr(cifar10, "trained", trained)
    point = {"stage": "trial", "mechanism": "dp-mf", "epsilon": 4.0}
    first, second, _ = (cell for cell in cifar10.cells(False) if point.items() <= cell.items())
    for cell in (first, second):
        assert cifar10.work(cell)["rate"] == 0.2
    assert tried == [
        *(("tuning", 0, rate) for rate in first["rates"]),
        ("trial", first["seed"], 0.2),
        ("trial", second["seed"], 0.2),
    ]


def test_tuning_is_cached(cache):
    calls = []

    def first(cell):
        calls.append(cell)
        return {"value": cell["x"] + 1}

    assert [cached_training(first, 1, {"x": x})["value"] for x in (1, 1, 2)] == [2, 2, 3]
    assert calls == [{"x": 1}, {"x": 2}]
    assert cached_training(lambda cell: {"value": 7}, 1, {"x": 1}) == {"value": 7}, (
        "another function"
    )
    assert cached_training(first, 2, {"x": 1}) == {"value": 2}, "another revision"
    assert calls == [{"x": 1}, {"x": 2}, {"x": 1}]


# ---- the whole studies, in small -----------------------------------------------------------------


@pytest.mark.slow
def test_cifar10_at_small_size(images, poisson, monkeypatch, tmp_path, cache):
    monkeypatch.setattr(cifar10, "COMMON", cifar10.COMMON | SMALL)
    monkeypatch.setattr(cifar10, "SCALED", {"model": "logistic", "subsample": 2})
    monkeypatch.setattr(cifar10, "SCALED_RATES", {4.0: [0.1, 0.2]})
    monkeypatch.setattr(cifar10, "TRIALS", {False: 2})
    monkeypatch.setattr(subsampled_training, "MAX_EVALUATED", 20)
    cells = cifar10.cells(False)
    assert len(cells) == 4 * (2 + 2)
    check(cifar10, [(cell, cifar10.work(cell)) for cell in cells], tmp_path)


@pytest.mark.slow
def test_scattering_at_small_size(images, poisson, monkeypatch, tmp_path, cache):
    small = scattering.COMMON | SMALL | {"epsilons": [1.0, 8.0], "rates": [0.5, 2.0]}
    monkeypatch.setattr(scattering, "COMMON", small)
    monkeypatch.setattr(scattering, "TRIALS", 2)
    cells = scattering.cells(False)
    assert len(cells) == 6 + 2 * 5
    found = [(cell, scattering.work(cell)) for cell in cells]
    check(scattering, found, tmp_path)
    chosen = [
        result["chosen"]
        for cell, result in found
        if cell["stage"] == "trial" and cell["mechanism"] == "damped"
    ]
    assert chosen[0] == chosen[1]
    assert all(choice["options"]["rho"] in (0.99, 0.998) for choice in chosen[0])


def check(study, found, folder):
    summary = study.summary(found, full=False)
    record = {"summary": summary, "settings": dict(found[0][0]), "full": False}
    record = json.loads(json.dumps(record, allow_nan=False))
    for values in record["summary"]["accuracy"].values():
        assert all(0 <= mean <= 1 and error >= 0 for mean, error in values.values())
    paths = study.draw(record, folder)
    assert {path.suffix for path in paths} == {".svg", ".png"}
    tables = study.tables(record)
    assert [len(table.rows) for table in tables] == [4, len(accuracies.AHEAD)]


def test_cells_cover_the_papers_grid():
    """Six ε, four mechanisms, 12 trials, one tuning per rate; less by default for the network."""
    full = cifar10.cells(full=True)
    assert sum(cell["stage"] == "trial" for cell in full) == 6 * 4 * 12
    assert {cell["subsample"] for cell in full} == {500}
    assert {cell["model"] for cell in full} == {"cnn"}
    for cell in [*full, *cifar10.cells(False), *scattering.cells(False)]:
        assert (cell["steps"], cell["epochs"], cell["batch_size"], cell["delta"]) == (
            2000,
            20,
            500,
            1e-6,
        )
    trials = [
        cell
        for cell in scattering.cells(False)
        if cell["stage"] == "trial" and cell["mechanism"] != "none"
    ]
    assert sum(len(cell["epsilons"]) for cell in trials) == 6 * 4 * 12


def test_comparisons_and_verdicts():
    assert accuracies.verdict([0.03, 0.01]) == "better"
    assert accuracies.verdict([-0.03, 0.01]) == "worse"
    assert accuracies.verdict([0.01, 0.01]) == "alike"
    assert accuracies.mean([0.4, 0.6]) == pytest.approx([0.5, 0.1])
