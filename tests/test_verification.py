"""`verify`: designs pass, and wrong claims are detected."""

import dataclasses
import json

import numpy as np
import pytest

import antiphase as ap
from antiphase import verification
from antiphase.errors import FileFormatError
from antiphase.verification import _groups, read_statement, verify


@pytest.fixture(scope="module")
def mechanism():
    return ap.calibrate(ap.design("dp-mf+", steps=48, epochs=3), epsilon=4.0, delta=1e-6)


@pytest.fixture(scope="module")
def claims(mechanism):
    return json.loads(mechanism.statement().to_json())


def failing(checks):
    return [check.name for check in checks if not check.holds]


DESIGNS = {
    "dense": ("dp-mf", {"epochs": 3}),
    "stream": ("dp-mf", {}),
    "blocks": ("dp-mf+", {"epochs": 3, "tau": 16}),
    "tree": ("tree", {"epochs": 3}),
    "toeplitz": ("sqrt-toeplitz", {"epochs": 3}),
    "cancelling": ("fourier", {"epochs": 24}),
    "identity": ("dp-sgd", {}),
    "separated": ("dp-mf", {"participation": ap.min_separation(3, 10)}),
    "damped": ("damped", {"rho": 0.9}),
    "banded": ("banded", {"epochs": 3, "bands": 20}),
    "blt": ("blt", {"epochs": 3, "buffers": 2}),
    "moving": ("bisr", {"participation": ap.min_separation(3, 10)}),
    "windows": ("dp-mf", {"epochs": 3, "buffers": 3}),
    "restarts": ("epoch-restarts", {"epochs": 3}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), DESIGNS.values(), ids=DESIGNS)
def test_designs_pass(name, options):
    f = ap.design(name, steps=48, **options)
    assert failing(verify(f, full=True)) == []
    for adjacency in ("zero-out", "replace-one"):
        m = ap.calibrate(f, epsilon=2.0, delta=1e-5, adjacency=adjacency)
        checks = verify(m, json.loads(m.statement().to_json()))
        assert failing(checks) == []
        assert len(checks) >= 6


@pytest.mark.slow
def test_poisson_batches():
    m = ap.calibrate(
        ap.design("dp-sgd", steps=100),
        epsilon=2.0,
        delta=1e-5,
        sampling=ap.sampling.Poisson(0.01),
    )
    assert failing(verify(m)) == []
    less = dataclasses.replace(m)
    object.__setattr__(less, "epsilon", lambda delta, rows=None: 0.3)
    assert failing(verify(less)) == ["ε, by another accountant"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "rate", "noise"),
    [
        (16, 0.01, 2.0),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((256, 0.001, 1.0), (1000, 0.001, 2.0))
        ),
    ],
)
def test_poisson_batches_of_small_rates(steps, rate, noise):
    """Rényi divergences give eight times too much there; the lower bound does not."""
    f = ap.design("dp-sgd", steps=steps)
    m = ap.calibrate(f, noise_multiplier=noise, delta=1e-5, sampling=ap.sampling.Poisson(rate))
    assert failing(verify(m)) == []
    claimed = m.epsilon()
    for factor in (0.95, 20.0):
        wrong = dataclasses.replace(m)
        object.__setattr__(
            wrong, "epsilon", lambda delta, rows=None, factor=factor: factor * claimed
        )
        assert failing(verify(wrong)) == ["ε, by another accountant"]


@pytest.mark.slow
def test_cyclic_poisson_is_checked_with_as_many_groups_as_bands():
    """Eight rounds at rate 1/2 rather than 32 at 1/8, by another accountant."""
    f = ap.design("banded", steps=32, bands=4, participation=ap.min_separation(8, 4))
    m = ap.calibrate(f, noise_multiplier=2.0, sampling=ap.sampling.CyclicPoisson(0.125))
    alike = ap.calibrate(
        ap.design("dp-sgd", steps=8), noise_multiplier=2.0, sampling=ap.sampling.Poisson(0.5)
    )
    found, asked = (
        [c for c in verify(one, delta=1e-5) if "another accountant" in c.name] for one in (m, alike)
    )
    assert [(c.computed, c.holds) for c in found] == [(c.computed, True) for c in asked]


def test_groups_are_counted_by_the_encoder_and_not_by_the_accountant():
    f = ap.design("banded", steps=8, bands=4, participation=ap.min_separation(2, 4))
    m = ap.calibrate(f, noise_multiplier=4.0, sampling=ap.sampling.CyclicPoisson(0.2))
    m.accountant.__dict__["groups"] = 2  # the cached property
    assert failing(verify(m, delta=1e-2)) == ["ε, by another accountant"]


def test_groups_are_not_fewer_than_the_diagonals_of_the_matrix(monkeypatch):
    f = ap.design("banded", steps=8, bands=4, participation=ap.min_separation(2, 4))
    m = ap.calibrate(f, noise_multiplier=4.0, sampling=ap.sampling.CyclicPoisson(0.2))
    assert failing(_groups(m, f.encoder())) == []
    monkeypatch.setattr(type(f), "bands", 3)
    assert failing(_groups(m, f.encoder())) == ["groups, at least as many as diagonals"]


def test_a_bound_above_the_error_is_detected(mechanism):
    f = ap.design("dp-mf", steps=16, epochs=2)
    assert failing(verify(dataclasses.replace(f, bound=1.01 * f.error))) == [
        "error is above the bound"
    ]
    # A bound between the optimum and the error takes a search to detect.
    worse = ap.design("dp-mf", steps=16, epochs=2, tolerance=0.3)
    claimed = dataclasses.replace(worse, bound=worse.error)
    assert worse.error > f.error * (1 + 1e-4)
    assert failing(verify(claimed)) == []
    assert failing(verify(claimed, full=True)) == ["bound, solved again"]
    # A bound that is lower than necessary is valid.
    assert failing(verify(dataclasses.replace(f, bound=0.5 * f.error), full=True)) == []


@pytest.mark.parametrize(
    ("name", "wrong", "noticed"),
    [
        ("sensitivity", 0.9, "sensitivity of the encoder"),
        ("sensitivity", 1 - 1e-7, "sensitivity of the encoder"),
        ("error", 0.9, "error"),
    ],
)
def test_a_figure_that_is_too_small_is_detected(name, wrong, noticed):
    f = ap.design("dp-mf", steps=16, epochs=2)
    f.__dict__[name] = wrong * getattr(f, name)  # the cached property
    assert noticed in failing(verify(f))


def test_a_sensitivity_without_absolute_values_is_detected():
    """Columns that partly cancel: the norm of their sum is too small."""
    f = ap.design("fourier", steps=16, participation=ap.epochs(8, every=2))
    C = f.encoder()
    assert (C.T @ C).min() < 0
    f.__dict__["sensitivity"] = max(
        np.linalg.norm(C[:, p].sum(axis=1)) for p in f.participation.patterns(16)
    )
    assert "sensitivity of the encoder" in failing(verify(f))


@pytest.mark.parametrize("wrong", ["small", "one row", "repeated", "uncorrelated"])
def test_wrong_noise_is_detected(mechanism, monkeypatch, wrong):
    real = ap.Mechanism.noise

    class Wrong:
        def __init__(self, stream):
            self.stream, self.step, self.last = stream, -1, 0

        def next(self):
            self.step += 1
            row = self.stream.next()
            if wrong == "small":
                return row * 0.97
            if wrong == "one row":
                return row * (0.8 if self.step == 20 else 1)
            if wrong == "repeated":
                self.last = row if self.step != 9 else self.last
                return self.last
            return np.random.default_rng(self.step).normal(0, mechanism.noise_scale, row.shape)

    monkeypatch.setattr(ap.Mechanism, "noise", lambda self, *a, **k: Wrong(real(self, *a, **k)))
    assert failing(verify(mechanism)) == ["noise rows"]


def test_an_epsilon_that_is_too_small_is_detected(mechanism):
    less = dataclasses.replace(mechanism)
    object.__setattr__(less, "epsilon", lambda delta, rows=None: 3.99)
    assert failing(verify(less)) == ["ε, by another accountant"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 3.0),
        ("delta", 1e-9),
        ("digest", "0" * 64),
        ("noise_multiplier", 9.0),
        ("sensitivity", 0.5),
        ("clip_norm", 2.0),
        ("adjacency", "replace-one"),
        ("sampler", "poisson"),
        ("participation", "once"),
        ("unit", "user"),
        ("steps", 47),
        ("released_epsilon", 0.1),
        ("released_rows", 10**6),
        ("mu", None),
    ],
)
def test_an_altered_statement_is_detected(mechanism, claims, name, value):
    (wrong,) = failing(verify(mechanism, claims | {name: value}))
    assert wrong.startswith("statement")


def test_statements_of_other_mechanisms_or_with_missing_fields_are_detected(mechanism, claims):
    other = ap.calibrate(mechanism.factorization, epsilon=3.0, delta=1e-6)
    assert len(failing(verify(other, claims))) == 1
    less = {k: v for k, v in claims.items() if k != "epsilon"}
    assert len(failing(verify(mechanism, less))) == 1


def test_files_that_are_not_statements_are_refused(tmp_path, mechanism, claims):
    for text in (
        "",
        "[]",
        "{}",
        '{"digest": "a"}',
        '{"digest": "a", "delta": "small"}',
        "[" * 100_000,
        "\xff",
    ):
        (tmp_path / "s.json").write_text(text, encoding="latin-1")
        with pytest.raises(FileFormatError, match=r"s\.json: not a statement"):
            read_statement(tmp_path / "s.json")
    (tmp_path / "s.json").write_text(json.dumps(claims))
    assert read_statement(tmp_path / "s.json") == claims
    with pytest.raises(ValueError, match="has no guarantee"):
        verify(mechanism.factorization, claims)


def test_a_flipped_bit_is_refused_or_detected(tmp_path, mechanism):
    path = tmp_path / "m.antiphase"
    mechanism.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=60):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(spoilt)
        try:
            loaded = ap.load(path)
        except FileFormatError:
            continue
        assert loaded.digest == mechanism.digest  # such as blanks in the header


def test_long_mechanisms_never_pass_unchecked(monkeypatch, mechanism):
    monkeypatch.setattr(verification, "MAX_ENCODER_STEPS", 40)
    assert [check.name for check in verify(mechanism)] == [
        "error is above the bound",
        "ε, by another accountant",
    ]
    with pytest.raises(ValueError, match="nothing was checked"):
        verify(ap.design("dp-sgd", steps=48))
