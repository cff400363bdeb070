"""The examples, and the snippets on the page for users of Opacus, run correctly."""

import gzip
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from antiphase import Key
from tests.forked_script import Script

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(name, *arguments, killed=False):
    """What the example prints."""
    script = Script(ROOT / "examples" / name, *arguments)
    assert script.wait(300) == (-signal.SIGKILL if killed else 0), script.err
    return script.out


def number(pattern, text):
    return float(re.search(pattern, text)[1])


def test_digits(shown):
    printed = run("digits.py")
    accuracy, epsilon = (
        number(r"held-out digits: ([\d.]+)%", printed),
        number(r"ε = ([\d.]+)", printed),
    )
    shown("digits, accuracy at ε = 8", f"{accuracy} %", "≥ 88 %")
    assert accuracy >= 88  # the noise is another one in every run
    assert 7.99 < epsilon <= 8
    assert "is (8, 1e-05)-differentially private for each" in printed
    lines = (
        (ROOT / "examples" / "digits.py").read_text(encoding="utf-8").split('"""')[2].splitlines()
    )
    assert len([line for line in lines if line.strip()]) <= 30


def test_mnist_as_with_opacus(shown):
    printed = run("mnist_opacus.py", "--epochs", 1)
    accuracy, epsilon = (
        number(r"test accuracy: ([\d.]+)%", printed),
        number(r"ε = ([\d.]+)", printed),
    )
    shown("mnist_opacus, accuracy after one epoch", f"{accuracy} %", "≥ 20 % (10 % is chance)")
    assert accuracy >= 20
    assert 6 < epsilon < 7  # σ = 0.7
    assert "ε" not in run("mnist_opacus.py", "--epochs", 1, "--disable-dp", "--lr", 0.1)


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(
        header + array.astype(np.uint8).tobytes()
    )


def test_mnist_from_its_files(tmp_path):
    rng = np.random.default_rng(0)
    for part, count, suffix in (("train", 200, ".gz"), ("t10k", 100, "")):
        labels = rng.integers(2, size=count)
        images = np.zeros((count, 28, 28))
        images[labels == 1, :, 14:] = 255  # 0: all black; 1: the right half white
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{suffix}", labels)
    printed = run(
        "mnist_opacus.py",
        "--data",
        tmp_path,
        "--epochs",
        2,
        "-c",
        1,
        "--sigma",
        0.1,
        "--batch-size",
        50,
    )
    assert number(r"test accuracy: ([\d.]+)%", printed) > 90
    assert len(re.findall(r"epoch \d: ", printed)) == 2


def test_transformer_with_ghost_clipping(shown):
    printed = run("transformer_ghost.py")
    accuracy, epsilon = (
        number(r"new sequences: ([\d.]+)%", printed),
        number(r"ε = ([\d.]+)", printed),
    )
    shown("transformer, ghost clipping, accuracy at ε = 4", f"{accuracy} %", "≥ 90 %")
    assert accuracy >= 90
    assert 3.99 < epsilon <= 4


def finished(printed):
    assert "all 24 steps are done" in printed
    assert 7.99 < number(r"ε = ([\d.]+)", printed) <= 8
    return re.search(r"weights: ([0-9a-f]{64})", printed)[1]


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    """Two copies of one run with its key: one continues, the other is killed once more."""
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    options = ("--epochs", 2, "--checkpoint-every", 5)  # 24 steps
    assert "0 of 24 steps are done" in run(
        "resume.py", "--folder", alone, *options, "--kill-after", 3, killed=True
    )
    shutil.copytree(alone, killed)
    weights = finished(run("resume.py", "--folder", alone, *options))
    options = (*options, "--kill-after", 19)
    assert "0 of 24 steps are done" in run("resume.py", "--folder", killed, *options, killed=True)
    printed = run("resume.py", "--folder", killed, *options)
    assert "15 of 24 steps are done" in printed  # from the last checkpoint, within the second epoch
    assert "9 of them by this process" in printed  # four of which for the second time
    assert finished(printed) == weights
    assert len(Key.load(killed / "key").runs()) == 1  # one run, so one release to account for
    ledgers = [next(folder.glob("key.*.ledger")).read_bytes() for folder in (alone, killed)]
    assert ledgers[0] == ledgers[1]
    assert len(ledgers[0]) == 24 * 16  # each step once


def run_the_page(name, blocks):
    """All the Python of a page of the documentation, one block after the other."""
    found = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(found) == blocks
    names: dict = {}
    for i, code in enumerate(found):
        exec(compile(code, f"{name}, block {i + 1}", "exec"), names)  # noqa: S102


def test_the_python_on_the_page_about_sampled_batches_runs(capsys):
    run_the_page("sampling.md", blocks=1)
    bands, epsilon = capsys.readouterr().out.splitlines()
    assert int(bands.split()[0]) > 1
    assert 0.99 < float(epsilon) <= 1


def test_the_python_on_the_page_for_users_of_opacus_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_the_page("from-opacus.md", blocks=11)
    printed = capsys.readouterr().out
    assert [round(float(line), 1) for line in printed.splitlines()[:3]] == [2.6, 3.7, 4.4]
    for words in (
        "36 3 epochs of 12 steps <Workload sgd, momentum 0.9",
        "scheduled rates, 36 steps",
        "<PrivacyEngine dp-mf+: 12 of 12 steps released, noise multiplier 1, clip norm 1>",
        "all 36 steps of the plan are done",
        "at most 3 times, at least 1 steps apart",
        "antiphase.torch.private_optimizer.PoissonOptimizer",
    ):
        assert words in printed
