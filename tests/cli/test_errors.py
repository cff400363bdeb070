"""Invalid input ends with a one-line error, before any work, and leaves no file behind."""

import ast
from pathlib import Path

import pytest

import antiphase as ap
from antiphase import cli

DESIGN = ["design", "dp-mf", "--steps", "16"]
BUDGET = "--epsilon 8 --delta 1e-5"
TRAIN = "--data digits --epsilon 8 --delta 1e-4"
RATE = "--sampler cyclic-poisson --sampling-rate"

USAGE_ERRORS = {
    "design dp-mf --steps -3": "--steps",
    "design dp-mf --steps many": "--steps",
    "design dp-mf": "--steps",
    "design --steps 3": "NAME",
    "design nope --steps 3": "dp-mf+",
    "design dp-mf --steps 64 --epochs 100": "only 64",
    "design dp-mf --steps 5 --epochs 4": (
        "--epochs 4 does not fit --steps 5: with 2 steps an epoch there are only 3"
    ),
    "design dp-mf --steps 16 --option tau": "name=value",
    "design dp-mf --steps 16 --schedule nope": "cosine",
    "design dp-mf --steps 16 --adjacency nope": "replace-one",
    "design dp-mf --steps 16 --nesterov": "--momentum",
    "design dp-mf --steps 16 --epsilon 8": "--delta",
    "design dp-mf --steps 16 --delta 1e-5": "--epsilon",
    "design dp-mf --steps 16 --clip 3": "--epsilon",
    "design dp-mf --steps 16 --epsilon 8 --noise-multiplier 1 --delta 1e-5": "give one",
    f"design dp-mf --steps 16 --adjacency add-remove {BUDGET}": "Poisson",
    f"design toeplitz --steps 16 --bands auto {BUDGET}": "--sampler cyclic-poisson",
    f"design toeplitz --steps 16 {RATE} 0.1": "--epsilon",
    f"design toeplitz --steps 16 --sampler cyclic-poisson {BUDGET}": "--sampling-rate",
    f"design toeplitz --steps 16 --sampling-rate 0.1 {BUDGET}": "--sampler",
    f"design blt --steps 16 {RATE} 0.1 {BUDGET}": "banded design",
    f"design toeplitz --steps 8 --epochs 2 {RATE} 1 --noise-multiplier 1": "--epochs",
    f"design toeplitz --steps 16 {RATE} 0.1 --noise-multiplier 1": "--bands auto",
    "compare --steps 16 --sampler poisson": "--epsilon",
    "compare --steps 16 --sampler shuffled": "balls-in-bins",
    f"compare --steps 16 {BUDGET} --sampling-rate 0.1": "--sampler",
    "compare --steps 16 --family -m dp-sgd": "give one",
    "compare --steps 16 -m dp-sgd:poisson,balls-in-bins": "exclude each other",
    f"calibrate {BUDGET} --sampler balls-in-bins --sampling-rate 0.1": "--sampling-rate 0.1 is for",
    "compare --steps 16 --epsilon 8": "--delta",
    "compare --steps 16 --delta 1e-5": "--epsilon",
    "compare --steps 16 --csv --json": "give one",
    "compare --steps 16 -m nope": "dp-mf+",
    "compare --steps 16 -m dp-mf:foo=3": (
        "--mechanism dp-mf:foo=3: dp-mf has no option foo; it takes weights"
    ),
    "compare --steps 16 -m dp-sgd -m dp-mf:foo=3": "dp-mf has no option foo",
    "recommend --steps 16 --sampler poisson": "--epsilon",
    f"recommend --steps 16 {BUDGET} --sampling-rate 0.1": "--sampler",
    "recommend --steps 16 --smoothness 4": "between 0 and 1",
    "recommend --steps 16 --smoothness -1": "between 0 and 1",
    "recommend --steps 16 --smoothness 0.1 --spectrum s.json": "give one",
    "recommend --steps 16 --batch-size 8": "--spectrum",
    "recommend --steps 16 --criterion average": "--spectrum",
    "recommend --steps 16 --criterion worst --spectrum s.json": "average",
    "calibrate": "--epsilon",
    "calibrate --epsilon 8": "--delta",
    f"calibrate {BUDGET} --steps 3": "--sampling-rate",
    f"calibrate {BUDGET} --sampling-rate 0.1": "--steps",
    f"calibrate {BUDGET} -o x.antiphase": "FILE",
    f"calibrate plan.antiphase {BUDGET} --steps 3": "known from plan.antiphase",
    "statement": "FILE",
    "train --data digits": "--epsilon",
    "train --data digits --epsilon 8": "--delta",
    "train --data digits --delta 1e-5": "--epsilon",
    f"train --data digits {BUDGET} --mechanism nope": "dp-mf+",
    f"train --data digits {BUDGET} --mechanism none": "no privacy",
    f"train --data digits {BUDGET} --schedule nope": "cosine",
    f"train --data digits {BUDGET} --mode nope": "ghost",
    f"train --data digits {BUDGET} --resume": "--checkpoint",
    f"train --data digits {BUDGET} --mechanism dp-sgd --checkpoint c": "--checkpoint",
    f"train --data digits {BUDGET} --trials 2 -o w": "--output",
    "nope": "nope",
    "design dp-mf --steps 3 --nope": "--nope",
}

INPUT_ERRORS = {
    "design dp-mf --steps 16 --option foo=3": "it takes weights",
    "design dp-mf --steps 16 --buffers lots": "auto, exact",
    "design dp-mf --steps 16 --buffers 0": "buffers = 0",
    "design dp-mf --steps 16 --momentum 1": "momentum = 1",
    "design dp-mf --steps 16 --lr 0": "learning_rates",
    "design dp-mf --steps 16 --tolerance 0": "tolerance = 0",
    "design dp-mf --steps 16 --epsilon -8 --delta 1e-5": "epsilon = -8",
    "design dp-mf+ --steps 16 --tau 0": "tau = 0",
    "calibrate --epsilon -1 --delta 1e-5": "epsilon = -1",
    "design dp-mf --steps 16 --epsilon 8 --delta 2": "delta = 2",
    "design dp-mf --steps 16 -o missing/x.antiphase": "there is no folder missing",
    "design dp-mf --steps 16 -o .": "is a folder",
    "design dp-mf --steps 16 --figures plan.antiphase": "plan.antiphase",
    "compare --steps 16 --html missing/x.html": "there is no folder missing",
    "compare --steps 16 -m dp-mf:poisson": "dp-sgd alone",
    "compare --steps 16 -m dp-sgd:poisson": "depends on ε",
    "compare --steps 16 -m dp-mf+:tau=0": "tau = 0",
    f"calibrate absent.antiphase {BUDGET}": "absent.antiphase: No such file",
    f"calibrate garbage {BUDGET}": "garbage: not an antiphase file",
    f"calibrate plan.antiphase {BUDGET} -o missing/x": "there is no folder missing",
    f"calibrate plan.antiphase {BUDGET} --sampling-rate 0.1": "independent noise",
    "statement absent.antiphase": "absent.antiphase: No such file",
    "statement garbage": "not an antiphase file",
    "statement .": "is a folder",
    "statement plan.antiphase --released 1000": "rows = 1000",
    "statement design.antiphase": "not calibrated",
    "verify garbage": "not an antiphase file",
    "verify altered.antiphase": "altered.antiphase",
    "verify absent.antiphase": "absent.antiphase: No such file",
    "verify plan.antiphase --statement garbage": "not a statement",
    "verify plan.antiphase --statement absent.json": "absent.json: No such file",
    "verify plan.antiphase --statement list.json": "not a statement",
    "verify design.antiphase --statement statement.json": "has no guarantee",
    "data nope": "digits, mnist, fashion-mnist, cifar10",
    "data absent.csv": "absent.csv",
    "data garbage.csv": "garbage.csv",
    "train --data nope --epsilon 8 --delta 1e-4": "digits",
    f"train {TRAIN} --model nope": "logistic, mlp, cnn",
    f"train {TRAIN} --model nope:made": "nope",
    f"train {TRAIN} --option foo=3": "it takes tau",
    f"train {TRAIN} --lr -1": "learning_rate = -1",
    f"train {TRAIN} -o missing/w": "there is no folder missing",
    f"train {TRAIN} --html missing/w": "there is no folder missing",
    f"train {TRAIN} --checkpoint full": "--resume",
    f"train {TRAIN} --checkpoint none --resume": "without --resume",
}


@pytest.fixture
def folder(plan, tmp_path):
    """A folder with a valid plan, and with damaged and foreign files."""
    (tmp_path / "garbage").write_bytes(b"hello")
    damaged = bytearray((tmp_path / plan).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "altered.antiphase").write_bytes(damaged)
    (tmp_path / "garbage.csv").write_text("a,b\n")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("mine")


@pytest.mark.slow
@pytest.mark.parametrize("words", USAGE_ERRORS)
def test_wrong_usage(refused, folder, words):
    said = refused(*words.split(), code=2)
    assert USAGE_ERRORS[words] in said
    assert said.rstrip().endswith("--help")


@pytest.mark.slow
@pytest.mark.parametrize("words", INPUT_ERRORS)
def test_invalid_input(refused, folder, words):
    """The exit code is 2: 1 would be an answer of verify or audit."""
    assert INPUT_ERRORS[words] in refused(*words.split(), code=2)


def test_brackets_are_not_markup(refused):
    assert "[bold]x" in refused("statement", "[bold]x", code=2)


def test_a_bug_keeps_its_traceback(run, monkeypatch):
    """An exception that does not report invalid input is shown in full; its exit code is not 1."""

    def broken(*args, **options):
        return {}["absent"]

    monkeypatch.setattr(ap, "design", broken)
    for words in (DESIGN, ["calibrate", "--epsilon", "1", "--delta", "1e-5"]):
        done = run(*words)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("Traceback")
        assert "KeyError: 'absent'" in done.err.splitlines()[-1]


def test_every_error_has_a_traceback_on_request(run, monkeypatch):
    """A ValueError reports invalid input; should it be a bug, its traceback can be seen."""

    def broken(*args, **options):
        return int("no number")

    monkeypatch.setattr(ap, "design", broken)
    done = run(*DESIGN)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: invalid literal")
    monkeypatch.setenv("ANTIPHASE_TRACEBACK", "1")
    done = run(*DESIGN)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Traceback")
    assert 'int("no number")' in done.err
    assert "error: invalid literal" in done.err.splitlines()[-1]


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("desing dp-mf", "antiphase has no command desing; did you mean 'design'?"),
        (
            "design dpsgd --steps 8",
            f"NAME = dpsgd must be one of {', '.join(ap.designs())}; did you mean 'dp-sgd'?",
        ),
        (
            "design dp-mf --stpes 8",
            "antiphase design has no option --stpes; did you mean '--steps'?",
        ),
        ("design dp-mf -steps 8", "antiphase design has no option -steps; did you mean '--steps'?"),
        ("compare --steps 8 --noise 1", "antiphase compare has no option --noise."),
        ("design dp-mf --steps", "--steps needs a value."),
        ("design dp-mf --steps 8 --nesterov=1", "--nesterov does not take a value."),
        ("design dp-mf --steps 8 more", "unexpected argument more; remove it."),
        ("design dp-mf --steps 8 --lr nan", "--lr = nan must be a number."),
        ("design dp-mf --steps 1.5", "--steps = 1.5 must be a whole number of at least 1."),
    ],
)
def test_errors_of_the_command_line_are_the_same_with_every_version_of_typer(refused, words, error):
    """The message is ours, whole: one suggestion, then where to read on."""
    command = "antiphase" if words.startswith("desing") else f"antiphase {words.split()[0]}"
    assert refused(*words.split(), code=2) == f"error: {error} See: {command} --help\n"


@pytest.mark.issue(23)
def test_click_is_not_imported():
    """Typer 0.29 brings a private copy of Click, and Click itself is not installed."""
    for file in Path(cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())]
            assert "click" not in [*names, getattr(node, "module", "")], file.name
