"""``antiphase audit``: of a mechanism's noise, and of a function in a file of the user."""

import json
from pathlib import Path

import pytest

from antiphase import cli

TRAINER = """
import numpy as np

NOISE = {noise}
rng = np.random.default_rng(0)


def scores(canary, count):
    return rng.normal(size=count) * NOISE + canary


def once(included):
    return scores(included, len(included))


def none():
    return scores(True, 3)


number = 3
"""

RAISES = """
import json
import sys


def scores(canary, count):
    return helped(count)


def helped(count):
    {line}


def once(included):
    return helped(len(included))
"""


@pytest.fixture
def trainers(tmp_path):
    for name, noise in {"right": 1.0, "broken": 0.3}.items():
        (tmp_path / f"{name}.py").write_text(TRAINER.format(noise=noise))


@pytest.mark.slow
def test_a_mechanisms_own_noise(run, plan, tmp_path):
    done = run("audit", plan, "--trials", "2000", "--figure", "roc.png")
    assert done.code == 0, done.err
    assert done.out.startswith("No alarm: μ is at least")
    assert "proves nothing" in " ".join(done.out.split())
    assert (tmp_path / "roc.svg").exists()
    assert (tmp_path / "roc.png").exists()
    said = json.loads(run("audit", plan, "--trials", "2000", "--json").out)
    assert said["alarm"] is False
    assert said["lower_bound"] > 0.8 * said["claim"]["mu"] - 0.3
    assert run("audit", plan, "--mu", "0.2", "--trials", "2000").code == 1, (
        "claims less than it costs"
    )


def test_a_function_of_the_user(run, trainers, plan):
    claim = ("--mu", "1")
    assert run("audit", "right.py:scores", *claim, "--quiet").code == 0
    broken = run("audit", "broken.py:scores", *claim)
    assert broken.code == 1
    assert broken.out.startswith("ALARM")
    assert broken.err == ""
    assert run("audit", "right.py:once", "--one-run", *claim).code == 0
    assert run("audit", "broken.py:once", "--one-run", *claim).code == 1
    assert run("audit", "broken.py:scores", "--epsilon", "1", "--delta", "1e-5").code == 1
    assert run("audit", "right.py:scores", "--statement", "statement.json").code == 0
    assert json.loads(run("audit", plan, "--one-run", "--json").out)["canaries"] == 4000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ("right.py:scores", "give the claim", 2),
        ("right.py:scores --mu 1 --epsilon 2 --delta 1e-5", "give one of", 2),
        ("right.py:scores --epsilon 2", "belong together", 2),
        ("right.py:scores --mu 1 --trials 3", "--trials", 2),
        ("right.py:number --mu 1", "has no function 'number'", 2),
        ("right.py:absent --mu 1", "has no function 'absent'", 2),
        ("absent.py:scores --mu 1", "no such file", 2),
        ("right.py:scores --mu -1", "mu = -1.0", 2),
        ("right.py:scores --mu 1 --confidence 2", "confidence = 2", 2),
        (
            "right.py:once --mu 1",
            "cannot be called with (canary, count); for one training, give --one-run",
            2,
        ),
        (
            "right.py:scores --mu 1 --one-run",
            "cannot be called with (included); for many trainings, omit --one-run",
            2,
        ),
        ("right.py:none --mu 1", "right.py:none cannot be called with (canary, count). See", 2),
        ("right.py:scores --mu 1 --canaries 100", "--canaries is for --one-run", 2),
        ("right.py:once --mu 1 --one-run --trials 100", "--one-run makes one: give --canaries", 2),
        ("plan.antiphase --canaries 100", "--canaries is for --one-run", 2),
        ("design.antiphase", "not calibrated", 2),
        ("absent.antiphase", "No such file", 2),
    ],
)
def test_errors(refused, plan, trainers, words, said, code):
    assert said in refused("audit", *words.split(), code=code)


@pytest.mark.parametrize(
    ("line", "last"),
    [
        (
            "raise ValueError('[bold]no data[/]: :boom: ' + str(count))",
            "ValueError: [bold]no data[/]: :boom: 400",
        ),
        (
            "return json.loads('no')",
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
        ("raise FileNotFoundError('weights')", "FileNotFoundError: weights"),
        ("sys.exit(0)", "SystemExit: 0"),
        ("sys.exit('stop')", "SystemExit: stop"),
        ("exit_code = 1; raise RuntimeError", "RuntimeError"),
    ],
)
def test_an_exception_of_the_users_function_is_shown_with_its_traceback(run, tmp_path, line, last):
    """A traceback without frames of antiphase, then one line; the exit code is no answer."""
    (tmp_path / "mine.py").write_text(RAISES.format(line=line))
    done = run("audit", "mine.py:scores", "--mu", "1")
    assert (done.code, done.out) == (2, "")
    first, *frames, error, verdict = done.err.splitlines()
    assert first == "Traceback (most recent call last):"
    files = [text for text in frames if text.startswith("  File ")]
    assert [text.split(", in ")[1] for text in files][:2] == ["scores", "helped"]
    assert all("mine.py" in text for text in files[:2])
    assert not any(str(Path(cli.__file__).parents[1]) in text for text in files)
    assert line in "".join(frames)
    assert error == last
    assert (
        verdict
        == f"error: mine.py:scores raised {last.split(':')[0].split('.')[-1]}; there was no audit"
    )
    done = run("audit", "mine.py:once", "--mu", "1", "--one-run", "--canaries", "400", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-2:] == [error, verdict.replace(":scores", ":once")]


def test_its_cause_is_shown_too(run, tmp_path):
    lines = (
        "try: json.loads('no')\n"
        "    except ValueError as error: raise RuntimeError('no scores') from error"
    )
    (tmp_path / "mine.py").write_text(RAISES.format(line=lines))
    said = run("audit", "mine.py:scores", "--mu", "1").err
    assert (
        said.index("JSONDecodeError")
        < said.index("direct cause")
        < said.index("RuntimeError: no scores")
    )
    assert str(Path(cli.__file__).parents[1]) not in said


def test_a_file_that_does_not_run_is_an_error(run, tmp_path):
    for text, last in (
        ("import absent_package", "ModuleNotFoundError: No module named 'absent_package'"),
        ("def scores(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(1)", "SystemExit: 1"),
    ):
        (tmp_path / "mine.py").write_text(text)
        done = run("audit", "mine.py:scores", "--mu", "1")
        assert (done.code, done.out) == (2, "")
        *_, error, verdict = done.err.splitlines()
        assert error == last
        assert verdict == f"error: mine.py raised {last.split(':')[0]}; there was no audit"
        assert str(Path(cli.__file__).parents[1]) not in done.err
