"""What a factorization says of itself agrees with its encoder."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.noise_forms import BandedInverse, TreeEstimator
from antiphase.factorizations.segments import Stream

T = 20
DESIGNS = {
    "dp-sgd": ("dp-sgd", {}),
    "chess": ("chess", {}),
    "anti-pgd": ("anti-pgd", {}),
    "square root": ("sqrt-toeplitz", {}),
    "square root, normalized": ("sqrt-toeplitz", {"bands": 3, "normalized": True}),
    "banded": ("banded", {"bands": 4}),
    "inverse": ("bisr", {"bands": 3}),
    "blt": ("blt", {"buffers": 2}),
    "buffers": ("dp-mf", {}),
    "buffers, several vectors": ("dp-mf", {"workload": ap.Workload.sgd(T, momentum=0.9)}),
    "segments": ("dp-mf+", {"tau": 6}),
    "full tree": ("tree", {}),
    "online tree": ("tree", {"estimator": "online"}),
    "blocks": ("epoch-restarts", {"workload": ap.Workload.sgd(T, momentum=0.5), "epochs": 4}),
}
EVERY_DESIGN = pytest.mark.parametrize("name", DESIGNS)


@cache
def design(name):
    kind, options = DESIGNS[name]
    return ap.design(kind, **({} if "workload" in options else {"steps": T}), **options)


@EVERY_DESIGN
def test_the_stream_is_the_encoder(name):
    f = design(name)
    stream = f.as_stream()
    if name == "online tree":
        assert stream is None
        return
    np.testing.assert_allclose(stream.dense(), f.encoder(), atol=1e-12)
    assert f.restarts()[0] == 0
    variances = stream.variances(*f.workload.recurrence, f.workload.delay)
    np.testing.assert_allclose(variances * f.sensitivity**2, f.noise_per_iterate, rtol=1e-9)


def test_encoders_of_many_diagonals_are_no_streams():
    assert ap.design("sqrt-toeplitz", steps=64).as_stream().buffers == 63
    assert ap.design("sqrt-toeplitz", steps=65).as_stream() is None


@EVERY_DESIGN
def test_bands_and_coefficients_are_those_of_the_encoder(name):
    f = design(name)
    np.testing.assert_allclose(
        f.band_rows(3, 9), Factorization.band_rows(f, 3, 9)[:, : f.bands], atol=1e-14
    )
    C = f.encoder()
    coefficients = f.toeplitz_coefficients()
    is_toeplitz = np.array_equal(C[1:, 1:], C[:-1, :-1])
    assert f.is_identity == np.array_equal(C, np.eye(T))
    if coefficients is not None:
        np.testing.assert_allclose(C[: len(coefficients), 0], coefficients, atol=1e-14)
        np.testing.assert_allclose(C[1:, 1:], C[:-1, :-1], atol=1e-14)
    else:
        assert not is_toeplitz


@EVERY_DESIGN
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 19, 20])
def test_columns_of_the_first_rows_are_those_of_the_leading_block(name, rows):
    f = design(name)
    C = f.encoder()[:rows, :rows]
    columns = f.encoder_columns(rows)
    steps = np.arange(rows)
    np.testing.assert_allclose(columns.squared_norms(), np.square(C).sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(columns.gram(steps), C.T @ C, atol=1e-12)
    np.testing.assert_allclose(columns.gram(steps[::-3][::-1]), (C.T @ C)[::-3, ::-3][::-1, ::-1])
    shared = np.abs(C).T @ np.abs(C) > 0
    assert columns.steps == rows
    assert columns.reach > np.abs(np.subtract.outer(steps, steps))[shared].max()


@EVERY_DESIGN
def test_diagonal_blocks_are_the_encoder(name):
    f = design(name)
    C = np.zeros((T, T))
    for start, block in f.diagonal_blocks():
        C[start : start + len(block), start : start + len(block)] = block
    np.testing.assert_array_equal(C, f.encoder())


def test_each_noise_form():
    """Buffers, nodes and banded inverses have recurrences of their own; others use diagonals."""
    kinds = {name: type(design(name).noise_form()) for name in DESIGNS}
    buffers = {"blt", "buffers", "buffers, several vectors", "segments", "full tree"}
    assert {name for name, kind in kinds.items() if kind is Stream} == buffers
    assert kinds["online tree"] is TreeEstimator
    assert kinds["inverse"] is BandedInverse
    others = set(DESIGNS) - buffers - {"online tree", "inverse"}
    assert {kinds[name] for name in others} == {type(None)}


def test_forms_in_files_do_not_depend_on_the_names_of_classes():
    """Files written before a class was renamed can be read, and digests stay the same."""
    forms = {design(name).form for name in DESIGNS}
    assert forms == {
        "Identity", "Toeplitz", "Dense", "Banded", "InverseToeplitz", "Blt", "Streamed", "Tree",
        "Blocks",
    }  # fmt: skip


@pytest.mark.slow
def test_files_of_every_form_load_in_a_new_process(tmp_path):
    """Where nothing but antiphase was imported."""
    forms = {design(name).form: design(name) for name in DESIGNS}
    assert len(forms) == 9
    for form, factorization in forms.items():
        path = tmp_path / form
        factorization.save(path)
        code = f"import antiphase; print(antiphase.load({str(path)!r}).error)"
        printed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert float(printed) == pytest.approx(factorization.error, rel=1e-9)
