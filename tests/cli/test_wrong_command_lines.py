"""Wrong command lines: each message, whole, names what is wrong, the rule and what to do."""

import pytest

import antiphase as ap

MECHANISMS = ", ".join(ap.designs())
BUDGET = "--epsilon 8 --delta 1e-5"
TRAIN = "train --data digits"

WRONG = {
    "desing dp-mf --steps 8": "antiphase has no command desing; did you mean 'design'? HELP",
    "design dpmf --steps 8": f"NAME = dpmf must be one of {MECHANISMS}; did you mean 'dp-mf'? HELP",
    "design dp-mf --stpes 8": (
        "antiphase design has no option --stpes; did you mean '--steps'? HELP"
    ),
    "design dp-mf": "--steps is missing: number of optimizer steps. HELP",
    "design dp-mf --steps eight": "--steps = eight must be a whole number of at least 1. HELP",
    "design dp-mf --steps 8 --lr 0.1 0.2": "unexpected argument 0.2; remove it. HELP",
    "design dp-mf --steps 10 --epochs 20": (
        "--epochs 20 does not fit --steps 10: with 1 step an epoch there are only 10. "
        "Give that many epochs, or --steps 20. HELP"
    ),
    "design dp-mf --steps 8 --epsilon 0 --delta 1e-5": "epsilon = 0.0 must be positive",
    "design dp-mf --steps 8 --epsilon 8 --delta 1": (
        "delta = 1 must be below 1; usually it is well below one over the number of records"
    ),
    "design dp-mf --steps 8 --epsilon 8": (
        "--epsilon needs --delta: well below one over the number of records. HELP"
    ),
    f"design dp-sgd --steps 8 {BUDGET} --sampler posson": (
        "--sampler = posson must be one of poisson, cyclic-poisson, balls-in-bins; did "
        "you mean 'poisson'? HELP"
    ),
    f"design dp-sgd --steps 8 {BUDGET} --sampler poisson": (
        "--sampler poisson needs --sampling-rate: the probability that a record is in a batch. HELP"
    ),
    "design dp-mf+ --steps 8 --option tau:4": (
        "option 'tau:4' must be name=value, as in tau=128. HELP"
    ),
    "design dp-mf+ --steps 8 --option tua=4": (
        "tua = 4: dp-mf+ has no such option; it takes tau, weight, include_final, anchor,"
        " tolerance, buffers; did you mean 'tau'?"
    ),
    "design dp-mf --steps 8 -o missing/plan.antiphase": (
        "missing/plan.antiphase: there is no folder missing; create it first"
    ),
    "design dp-mf --steps 8 -o /proc/plan.antiphase": (
        "/proc/plan.antiphase cannot be written (No such file or directory); give another folder"
    ),
    "compare --steps 16 -m dp-mff": (
        f"--mechanism = dp-mff must be one of {MECHANISMS}; did you mean 'dp-mf'? HELP"
    ),
    "recommend --steps 16 --sampler poisson": (
        "--sampler poisson needs --epsilon and --delta: amplification depends on them. HELP"
    ),
    "calibrate design.antiphase --epsilon 8 --noise-multiplier 1 --delta 1e-5": (
        "give one of --epsilon and --noise-multiplier; the other follows. HELP"
    ),
    f"calibrate missing.antiphase {BUDGET}": "missing.antiphase: No such file or directory",
    "statement folder": "folder: is a folder; give a file",
    "statement design.antiphase": (
        "design.antiphase is a design that is not calibrated, so it has no guarantee; "
        "first: antiphase calibrate design.antiphase --epsilon … --delta … -o …"
    ),
    "verify altered.antiphase": (
        "altered.antiphase: the content does not match its digest: the file is damaged or was "
        "altered. Use an intact copy, or make it anew"
    ),
    "verify plan.antiphase --statement notes.txt": (
        "notes.txt: not a statement in JSON (Expecting value: line 1 column 1 (char 0)); "
        "antiphase statement --json writes one"
    ),
    "audit scores.py --mu 1": "scores.py: give a function of it, as in scores.py:scores. HELP",
    "data mnits": (
        "data = 'mnits' is neither one of digits, mnist, fashion-mnist, cifar10 nor a "
        "folder, .npz or .csv that exists; did you mean 'mnist'?"
    ),
    f"{TRAIN} {BUDGET} --batch-size 5000": (
        "batch_size = 5000 must be at most the number of training examples, 1436"
    ),
    f"{TRAIN} --epochs 4 --mechanism plan.antiphase": (
        "steps = 32 of the mechanism must be those of the training, 92: epochs = 4, of 23"
        " batches of 64 from 1436 examples. Design it with steps = 92 and epochs = 4, or "
        "change epochs or batch_size"
    ),
    f"{TRAIN} --epochs 4 --batch-size 180 --mechanism plan.antiphase {BUDGET}": (
        "epsilon = 8: the mechanism is calibrated already, with noise multiplier "
        "0.600229. Leave epsilon out, or give a design that is not calibrated"
    ),
    f"{TRAIN} {BUDGET} --resume": (
        "--resume needs --checkpoint: the folder of the run to resume. HELP"
    ),
    "demo --output notes.txt": "notes.txt: is a file; give a folder",
}


@pytest.fixture
def folder(plan, tmp_path):
    """A folder with a plan of 32 steps, a design, a damaged file, a text and a folder."""
    content = bytearray((tmp_path / plan).read_bytes())
    content[-1] ^= 1
    (tmp_path / "altered.antiphase").write_bytes(content)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()


@pytest.mark.issue(23)
@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_line_is_explained(refused, folder, words):
    """At once, in one line, which starts with ``error:``; nothing is written."""
    command = "antiphase" if words.startswith("desing") else f"antiphase {words.split()[0]}"
    error = refused(*words.split(), code=2)
    assert error == f"error: {WRONG[words].replace('HELP', f'See: {command} --help')}\n"
