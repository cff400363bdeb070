import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase as ap
from antiphase.sampling import KINDS
from antiphase.statement import ADJACENCY_WORDS, rounded_up

RECHECK = Path(__file__).parents[1] / "examples" / "recheck.py"

MECHANISMS = {
    "independent": lambda: ap.design("dp-sgd", steps=20, epochs=4),
    "toeplitz": lambda: ap.design("chess", steps=20),
    "normalised": lambda: ap.design("sqrt-toeplitz", steps=20, epochs=2),
    "dense, epochs": lambda: ap.design("dp-mf", steps=20, epochs=3),
    "stream with restarts": lambda: ap.design("dp-mf+", steps=23, tau=6),
    "stream": lambda: ap.design("dp-mf", workload=ap.Workload.sgd(20, momentum=0.9, delay=2)),
    "blocks": lambda: ap.design("dp-mf+", workload=ap.Workload.sgd(23, delay=2), tau=6),
    "tree": lambda: ap.design("tree", steps=20, estimator="online"),
    "tree by nodes": lambda: ap.design("tree", steps=20, sensitivity="nodes", epochs=4),
    "blt": lambda: ap.design("blt", steps=20, epochs=2, buffers=2),
    "inverse": lambda: ap.design("bisr", steps=20, participation=ap.min_separation(2, 5)),
    "banded": lambda: ap.design("banded", steps=20, epochs=4, bands=7),
    "windows": lambda: ap.design("dp-mf", steps=20, epochs=4, buffers=2),
    "apart": lambda: ap.design("dp-mf", steps=10, participation=ap.min_separation(2, 4)),
}


def recheck(mechanism, text, folder):
    mechanism.save(folder / "m.antiphase")
    (folder / "s.json").write_text(text)
    command = [sys.executable, str(RECHECK), str(folder / "m.antiphase"), str(folder / "s.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_recheck_script_is_short_and_does_not_import_antiphase():
    source = RECHECK.read_text()
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    assert len(statements) < 120  # not lines, which depend on the formatter
    assert "import antiphase" not in source
    assert "from antiphase" not in source


@pytest.mark.slow
@pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS.keys())
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_recheck_script_agrees(make, adjacency, tmp_path):
    m = ap.calibrate(make(), epsilon=2.0, delta=1e-5, clip_norm=0.7, adjacency=adjacency)
    done = recheck(m, m.statement().to_json(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_recheck_script_agrees_with_poisson_sampling(tmp_path):
    f = ap.design("dp-sgd", steps=20)
    m = ap.calibrate(f, noise_multiplier=1.0, delta=1e-5, sampling=ap.sampling.Poisson(0.1))
    assert recheck(m, m.statement().to_json(), tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "factor"),
    [("epsilon", 0.999), ("sensitivity", 0.999), ("noise_scale", 1.01), ("noise_multiplier", 1.01)],
)
def test_the_recheck_script_detects_a_statement_that_promises_too_much(field, factor, tmp_path):
    m = ap.calibrate(ap.design("dp-mf", steps=12, epochs=2), epsilon=2.0, delta=1e-5)
    said = json.loads(m.statement().to_json())
    said[field] *= factor
    assert recheck(m, json.dumps(said), tmp_path).returncode == 1


def test_the_recheck_script_detects_a_statement_of_another_mechanism(tmp_path):
    f = ap.design("dp-mf", steps=12)
    other = ap.calibrate(f, epsilon=2.0, delta=1e-5, unit="user")
    m = ap.calibrate(f, epsilon=2.0, delta=1e-5)
    done = recheck(m, other.statement().to_json(), tmp_path)
    assert done.returncode == 1
    assert "digest" in done.stdout


def test_the_text_names_every_assumption():
    m = ap.calibrate(ap.design("dp-mf", steps=12, epochs=2), epsilon=2.0, delta=1e-5, unit="user")
    text = " ".join(str(m.statement(released=5)).split())
    for words in (
        "(2, 1e-05)-differentially private for each user",
        "zero-out",
        "5 have been released so far",
        "2 epochs of 6 steps",
        "idealised real arithmetic",
        "public",
        "Not private: losses",
        "hyper-parameters",
        "fixed order",
        "no amplification",
        m.digest[:16],
        "AES-128",
    ):
        assert words in text, words
    assert "INSECURE" in str(m.statement(insecure=True))
    assert m.statement(insecure=True).insecure
    assert not m.statement().insecure
    assert "an upper bound" not in text
    apart = ap.design("sqrt-toeplitz", steps=10, participation=ap.min_separation(3, 2))
    assert not apart.sensitivity_is_exact
    assert "upper bound" in str(ap.calibrate(apart, epsilon=2.0, delta=1e-5).statement())


@pytest.mark.issue(23)
def test_the_short_text_is_the_guarantee_and_a_warning():
    """Noise that can be guessed is always named."""
    statement = in_epochs().statement()
    assert statement.paragraphs(short=True) == statement.paragraphs()[:1]
    assert "(zero-out)" in statement.paragraphs(short=True)[0]
    (_, warning) = in_epochs().statement(insecure=True).paragraphs(short=True)
    assert "INSECURE" in warning


def dp_sgd(**options):
    return ap.calibrate(ap.design("dp-sgd", steps=8), noise_multiplier=1.0, delta=1e-5, **options)


def apart(bands=2, **options):
    f = ap.design("toeplitz", steps=8, bands=bands, participation=ap.min_separation(4, 2))
    return ap.calibrate(f, noise_multiplier=1.0, delta=1e-5, **options)


def in_epochs(**options):
    return ap.calibrate(
        ap.design("dp-mf", steps=8, epochs=2), noise_multiplier=1.0, delta=1e-5, **options
    )


def of_a_training(**options):
    from tests.torch.setting import Training

    return Training(**options).engine.statement()


def of_several_runs():
    """The statement of a training that was restarted with fresh noise."""
    from tests.torch.setting import Training

    first = Training(run=None)
    first.run(2)
    state = first.release.state()
    first.run(1)
    first.release.restore(state, fresh_noise=True)
    assert first.release.replaced_runs() == [3]
    return first.engine.statement()


def of_a_server():
    from tests.federated import setting

    return setting.server(setting.mechanism()).statement()


STATEMENTS = {
    "fixed order": lambda: in_epochs().statement(),
    "fixed order, released in part": lambda: in_epochs().statement(released=3),
    "insecure": lambda: in_epochs().statement(insecure=True),
    "hash slots": lambda: in_epochs(
        sampling=ap.sampling.HashSlots(), adjacency="add-remove").statement(),
    "poisson": lambda: dp_sgd(sampling=ap.sampling.Poisson(0.1)).statement(),
    "poisson, add-remove": lambda: dp_sgd(
        sampling=ap.sampling.Poisson(0.1), adjacency="add-remove").statement(released=2),
    "cyclic poisson": lambda: apart(sampling=ap.sampling.CyclicPoisson(0.1)).statement(),
    "balls in bins": lambda: ap.calibrate(
        ap.design("sqrt-toeplitz", steps=8, epochs=2), noise_multiplier=1.0, delta=1e-3,
        sampling=ap.sampling.BallsInBins(),
    ).statement(),
    "replace-one": lambda: in_epochs(adjacency="replace-one").statement(),
    "users": lambda: apart(unit="user").statement(),
    "a training": of_a_training,
    "a trusted training": lambda: of_a_training(participation="trusted"),
    "several runs": of_several_runs,
    "a federated training": of_a_server,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("make", STATEMENTS.values(), ids=STATEMENTS)
def test_every_statement_says_that_arithmetic_is_idealised(make):
    """In the text and in JSON, for every sampling scheme, adjacency and unit."""
    made = make()
    said = json.loads(made.to_json())
    assert any("idealised real arithmetic" in caveat for caveat in said["caveats"])
    assert "idealised real arithmetic" in " ".join(str(made).split())


@pytest.mark.slow
def test_every_sampling_scheme_adjacency_and_unit_is_covered():
    """So that a new kind is added above."""
    made = [
        make() for name, make in STATEMENTS.items() if "training" not in name and "runs" not in name
    ]
    assert {one.sampler for one in made} == set(KINDS)
    assert {one.adjacency for one in made} == set(ADJACENCY_WORDS)
    assert {one.unit for one in made} == {"example", "user"}


def test_the_json_is_complete():
    m = ap.calibrate(ap.design("dp-mf", steps=12, epochs=2), epsilon=2.0, delta=1e-5)
    said = json.loads(m.statement(released=3).to_json())
    assert said["epsilon"] == m.epsilon()
    assert said["released_epsilon"] == m.epsilon(rows=3) < m.epsilon()
    assert set(said["versions"]) >= {"antiphase", "numpy", "python", "randomgen"}
    assert said["caveats"]
    assert said["not_private"]


def test_parameters_that_are_not_trained_are_named_up_to_ten():
    """The text names ten of them and counts the others; the JSON has all."""
    said = ap.calibrate(ap.design("dp-sgd", steps=4), noise_multiplier=1.0).statement(1e-5)
    assert "It covers" not in str(said)
    for count, words in (
        (0, ""),
        (1, "changed: p0."),
        (10, "p8, p9."),
        (11, "p9 and 1 more."),
        (13, "p9 and 3 more."),
    ):
        names = tuple(f"p{i}" for i in range(count))
        covered = dataclasses.replace(
            said, covered_tensors=3, covered_numbers=1234, frozen_parameters=names
        )
        text = " ".join(str(covered).split())
        assert "all 3 trained parameter tensors of the model (1,234 numbers)." in text
        assert words in text
        assert ("Not trained" in text) == (count > 0)
        assert ("more." in text) == (count > 10)
        assert json.loads(covered.to_json())["frozen_parameters"] == list(names)


def test_the_text_has_gdp_and_zcdp_and_the_released_rows():
    """1/s for GDP and 1/(2s²) for zCDP, rounded up; neither if one is missing."""
    said = ap.calibrate(ap.design("dp-sgd", steps=4), noise_multiplier=3.0, delta=1e-5).statement(
        released=4
    )
    assert "It is 0.3334-GDP and 0.05556-zCDP." in " ".join(str(said).split())
    assert "released so far" not in " ".join(str(said).split())
    for unknown in ({"mu": None}, {"rho": None}, {"mu": None, "rho": None}):
        assert "GDP" not in str(dataclasses.replace(said, **unknown))


def test_the_released_sensitivity_is_that_of_the_released_rows():
    """That of the first rows; with Poisson sampling, that of one step."""
    f = ap.design("dp-mf", steps=12, epochs=3)
    said = ap.calibrate(f, noise_multiplier=1.0, delta=1e-5).statement(released=5)
    assert said.released_sensitivity == f.sensitivity_of(5) < said.sensitivity == f.sensitivity
    sgd = ap.design("dp-sgd", steps=12, epochs=3)
    sampled = ap.calibrate(sgd, noise_multiplier=1.0, delta=1e-5, sampling=ap.sampling.Poisson(0.1))
    assert sampled.statement(released=9).released_sensitivity == sampled.sensitivity == 1.0
    assert sgd.sensitivity_of(9) > 1.0


def test_a_statement_cannot_be_changed_and_its_lines_fit():
    """Lines of at most 100 columns; a field that is set afterwards is refused."""
    said = ap.calibrate(ap.design("dp-sgd", steps=4), noise_multiplier=1.0).statement(1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        said.epsilon = 0.1
    assert max(map(len, str(said).splitlines())) <= 100
    assert f"Mechanism {said.digest[:16]}…, python" in " ".join(str(said).split())
    assert "ε" in dataclasses.replace(said, caveats=("the ε",)).to_json(), "letters as they are"
    assert said.to_json().startswith('{\n  "mechanism": "dp-sgd",\n')


def test_guarantees_are_never_rounded_down():
    for value in (8.0, 8.0000001, 0.12345, 1234.5678, 1e-7, 7.9999999):
        assert float(rounded_up(value)) >= value
    assert (rounded_up(8.0), rounded_up(0.12341), rounded_up(0.0)) == ("8", "0.1235", "0")


def test_a_statement_in_one_line():
    """Rounded up; what was released so far; and whether the noise can be guessed."""
    mechanism = ap.calibrate(ap.design("dp-sgd", steps=4), noise_multiplier=1.0, unit="user")
    said = dataclasses.replace(mechanism.statement(1e-5, released=3), epsilon=4.37701)
    line = "<PrivacyStatement (4.378, 1e-05)-DP for each user, zero-out: dp-sgd, 3 of 4 steps "
    assert repr(said) == f"{line}released>"
    assert repr(dataclasses.replace(said, insecure=True)) == f"{line}released, INSECURE>"
