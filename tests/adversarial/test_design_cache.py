"""Attacks on the design cache: entries for another problem than the requested one."""

import dataclasses
import math
import os
import stat

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting
from antiphase._util import files
from antiphase._util.values import digest
from antiphase.factorizations.dense import Dense
from antiphase.objective import Maximum

pytestmark = pytest.mark.issue(21)

STEPS, EPOCHS = 64, 16
QUESTIONS = {
    "dp-mf, once": {"name": "dp-mf", "steps": 40},
    "dp-mf, epochs": {"name": "dp-mf", "steps": 40, "epochs": 4},
    "dp-mf, separated": {"name": "dp-mf", "steps": 24, "participation": ap.min_separation(3, 5)},
    "dp-mf, buffers": {"name": "dp-mf", "steps": 24, "epochs": 2, "buffers": 2},
    "dp-mf+": {"name": "dp-mf+", "steps": 40, "tau": 5},
    "damped": {"name": "damped", "steps": 20, "rho": 0.9},
    "maximum": {"name": "optimal", "steps": 12, "objective": Maximum()},
    "maximum, epochs": {"name": "optimal", "steps": 12, "epochs": 3, "objective": Maximum()},
    "toeplitz": {"name": "toeplitz", "steps": 20, "epochs": 2},
    "banded": {"name": "banded", "steps": 20, "bands": 3},
    "blt": {"name": "blt", "steps": 30, "buffers": 2},
    "curvature": {"name": "curvature", "steps": 10, "spectrum": [0.1, 1.0], "learning_rate": 0.5},
}


@pytest.fixture(autouse=True)
def keep_everything(monkeypatch):
    monkeypatch.setattr("antiphase.solvers.design_cache.MIN_SECONDS", 0.0)


def asked(**changes):
    question = {"name": "dp-mf", "steps": STEPS, "epochs": EPOCHS, **changes}
    return ap.design(question.pop("name"), **question)


def true_mu(mechanism, participation):
    """μ of the mechanism's noise under this participation."""
    moved = ap.sensitivity(mechanism.factorization.encoder(), participation)
    return moved * mechanism.clip_norm / mechanism.noise_scale


def epsilon(mu, delta=1e-5):
    return accounting.gaussian_epsilon(1 / mu, delta)


def only_entry(folder):
    (path,) = folder.glob("*.antiphase")
    return path


def poison(path, other, *, claims_question=True):
    """Replace an entry by another design, in a file that is valid otherwise."""
    question = files.read(path)["question"]
    content = other.content() | ({"question": question} if claims_question else {})
    files.write(path, content, secret=True)


OTHERS = {
    "another participation": lambda: ap.design("dp-mf", steps=STEPS),
    "another workload": lambda: asked(steps=None, workload=ap.Workload.sgd(STEPS, momentum=0.9)),
    "fewer steps": lambda: asked(steps=STEPS // 2),
    "another objective": lambda: asked(name="damped", rho=0.9),
    "identity for one participation": lambda: ap.design("dp-sgd", steps=STEPS),
}


@pytest.mark.parametrize("claims_question", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_an_entry_that_answers_another_question_is_not_used(cache, other, claims_question, shown):
    """Row 41: with the poisoned entry the stated ε was 4.38 and the true one 69.8."""
    first = asked()
    path = only_entry(cache)
    stranger = OTHERS[other]()
    poison(path, stranger, claims_question=claims_question)
    again = asked()
    assert again.participation == first.participation
    assert again.workload == first.workload
    assert again.objective == first.objective
    np.testing.assert_array_equal(again.encoder(), first.encoder())
    mechanism = ap.calibrate(again, noise_multiplier=1.0, delta=1e-5)
    truth = true_mu(mechanism, first.participation)
    wrong = ap.calibrate(stranger, noise_multiplier=1.0, delta=1e-5)
    claim = f"ε with the poisoned entry ignored (entry: {wrong.epsilon():.3g} in words"
    if stranger.steps == STEPS:
        claim += f", {epsilon(true_mu(wrong, first.participation)):.3g} in truth"
    shown(f"{claim})", f"{mechanism.epsilon():.4g}", f">= {epsilon(truth):.4g}, the truth")
    assert mechanism.epsilon() >= epsilon(truth) * (1 - 1e-9)
    assert asked().error == first.error, "the entry was replaced by an answer"


def test_an_entry_without_figures_is_not_used(cache):
    """Row 41: an encoder whose entries overflow has no sensitivity; it is computed again."""
    first = asked()
    path = only_entry(cache)
    content = files.read(path)
    huge = Dense(
        "dp-mf", first.workload, first.objective, first.participation, np.eye(STEPS) * 1e150
    )
    files.write(path, huge.content() | {"question": content["question"]}, secret=True)
    assert asked().sensitivity == first.sensitivity


def test_an_entry_that_claims_too_high_a_bound_is_not_used(cache):
    """Row 41: a bound above the error would certify a design that is not optimal."""
    first = asked()
    path = only_entry(cache)
    worse = Dense("dp-mf", first.workload, first.objective, first.participation, np.eye(STEPS))
    poison(path, dataclasses.replace(worse, bound=worse.error * 1.01))
    again = asked()
    assert again.error == pytest.approx(first.error)
    assert again.lower_bound == first.lower_bound


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_design_is_found_again(cache, question, monkeypatch):
    """Row 41: the checks accept every entry of our own; the second time no solver runs."""
    options = dict(QUESTIONS[question])
    name = options.pop("name")
    first = ap.design(name, **options)
    assert list(cache.glob("*.antiphase")), "kept"

    def fail(*_, **__):
        raise AssertionError("designed anew")

    real = "antiphase.solvers.design_cache.time.perf_counter"
    monkeypatch.setattr(real, fail)
    again = ap.design(name, **options)
    np.testing.assert_allclose(again.encoder(), first.encoder(), rtol=1e-12, atol=1e-15)
    assert digest(again.content()) == digest(first.content())


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_folder_and_entries_are_the_owners_alone(tmp_path, monkeypatch, shown):
    """Row 41: no other user can read or replace an entry, whatever the umask is."""
    monkeypatch.delenv("ANTIPHASE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "antiphase" / "designs").mkdir(parents=True, mode=0o755)  # of an earlier version
    before = os.umask(0)
    try:
        asked()
    finally:
        os.umask(before)
    folder = tmp_path / "antiphase" / "designs"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, only_entry(folder))]
    shown("modes of the folder and of an entry", [f"{mode:o}" for mode in modes], "700, 600")
    assert modes == [0o700, 0o600]


@pytest.mark.skipif(os.name != "posix", reason="modes")
@pytest.mark.parametrize("how", ["group can write", "others can read", "link", "another owner"])
def test_an_entry_that_others_could_have_written_is_not_used(cache, how, monkeypatch, tmp_path):
    """Row 41: an entry is used only if no other user can write it."""
    first = asked()
    path = only_entry(cache)
    worse = Dense("dp-mf", first.workload, first.objective, first.participation, np.eye(STEPS))
    poison(path, worse)
    if how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "another owner":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    else:
        path.chmod(0o620 if how == "group can write" else 0o604)
    assert asked().error == pytest.approx(first.error)
    assert not math.isclose(worse.error, first.error, rel_tol=0.1)


def test_an_entry_for_other_options_is_not_used(cache):
    """Row 41: the same workload and participation, but another number of buffers."""
    first = ap.design("blt", steps=30, buffers=1)
    path = only_entry(cache)
    kept = path.read_bytes()
    second = ap.design("blt", steps=30, buffers=3)
    (other,) = set(cache.glob("*.antiphase")) - {path}
    other.write_bytes(kept)
    again = ap.design("blt", steps=30, buffers=3)
    assert again.error == second.error < first.error
