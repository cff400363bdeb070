"""What goes where: results to standard output, all else to standard error; exit codes 0 yes, 1 no, 2 no answer."""

import csv
import io
import json
import re
import shlex

import pytest

import antiphase as ap
from antiphase import accounting
from antiphase.cli import output
from antiphase.cli import train as training
from antiphase.statement import rounded_up
from tests.cli.conftest import process


def strict(text):
    """JSON as the standard has it: no NaN, no Infinity, nothing around it."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


TRAIN = [
    "train",
    "--data",
    "digits",
    "--epochs",
    "1",
    "--batch-size",
    "256",
    "--delta",
    "1e-4",
    "--epsilon",
    "8",
]
WITH_JSON = {
    "design": ["design", "dp-mf", "--steps", "8", "--epsilon", "8", "--delta", "1e-5"],
    "compare": [
        "compare",
        "--steps",
        "16",
        "--epochs",
        "2",
        "-m",
        "dp-sgd",
        "-m",
        "dp-mf",
        "-m",
        "dp-mf+:tau=0",
    ],
    "recommend": ["recommend", "--steps", "16", "--epochs", "2"],
    "calibrate": ["calibrate", "--epsilon", "8", "--delta", "1e-5"],
    "statement": ["statement", "plan.antiphase"],
    "verify": ["verify", "plan.antiphase"],
    "data": ["data", "digits"],
}


@pytest.mark.parametrize("words", WITH_JSON.values(), ids=WITH_JSON)
def test_json_is_all_there_is_on_standard_output(run, plan, words):
    done = run(*words, "--json")
    assert done.code == 0, done.err
    assert strict(done.out)


@pytest.mark.slow
def test_json_of_training(run):
    found = strict(run(*TRAIN, "--trials", "2", "--json").out)
    assert [trial["seed"] for trial in found["trials"]] == [0, 1]
    assert found["trials"][0]["epsilon"] <= 8
    assert 0 < found["accuracy"] < 1
    assert found["stopped"] is False


@pytest.mark.slow
def test_training_that_diverges_is_json_too(run):
    words = [
        "train",
        "--data",
        "digits",
        "--epochs",
        "3",
        "--batch-size",
        "256",
        "--mechanism",
        "none",
        "--lr",
        "1e38",
    ]
    found = strict(run(*words, "--json").out)
    assert found["trials"][0]["finite"] is False
    assert "(diverged)" in run(*words).out


@pytest.mark.parametrize(
    ("mechanism", "how"),
    [("dp-mf", {}), ("dp-sgd", {"sampling": ap.sampling.Poisson(0.1)})],
    ids=["dp-mf", "dp-sgd"],
)
def test_all_trials_together_cost_more_than_one(mechanism, how):
    m = ap.calibrate(ap.design(mechanism, steps=8), noise_multiplier=4.0, delta=1e-2, **how)
    together = training._epsilon_of_all(m.statement(), 3)
    assert together == rounded_up(m.epsilon_of_runs([8, 8, 8]))
    assert float(together) > m.epsilon()


def test_numbers_that_json_does_not_have_are_null(capsys):
    output.print_json({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert strict(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


def test_a_file_in_json_is_the_file_on_disk(run, tmp_path):
    found = strict(run(*WITH_JSON["design"], "-o", "m.antiphase", "--json").out)
    m = ap.load(tmp_path / "m.antiphase")
    assert found["digest"] == m.digest
    assert found["epsilon"] == m.epsilon() <= 8
    assert found["error"] == m.factorization.error
    assert found["lower_bound"] == m.factorization.lower_bound
    assert found["noise_multiplier"] == m.noise_multiplier


def test_calibration_goes_both_ways(run, plan, tmp_path):
    there = strict(run("calibrate", "--epsilon", "2", "--delta", "1e-6", "--json").out)
    assert there["noise_multiplier"] == accounting.gaussian_noise_multiplier(2.0, 1e-6)
    s = repr(there["noise_multiplier"])
    back = strict(run("calibrate", "--noise-multiplier", s, "--delta", "1e-6", "--json").out)
    assert 2 * (1 - 1e-6) < back["epsilon"] <= 2
    run("calibrate", "design.antiphase", "--epsilon", "2", "--delta", "1e-6", "-o", "new.antiphase")
    assert ap.load(tmp_path / "new.antiphase").noise_multiplier == there["noise_multiplier"]
    twice = strict(
        run(
            "calibrate", "--epsilon", "2", "--delta", "1e-6", "--adjacency", "replace-one", "--json"
        ).out
    )
    assert twice["noise_multiplier"] == 2 * there["noise_multiplier"]


def test_a_design_is_calibrated_or_says_how(run):
    done = run("design", "dp-mf", "--steps", "8", "-o", "d.antiphase")
    assert "antiphase calibrate d.antiphase" in done.err
    assert run("design", "dp-mf", "--steps", "8", "-o", "d.antiphase", "--quiet").err == ""
    refusal = run("statement", "d.antiphase")
    assert refusal.code == 2
    assert "antiphase calibrate d.antiphase" in refusal.err


def test_quiet_leaves_the_result(run, plan):
    for words in (
        ["compare", "--steps", "8"],
        ["recommend", "--steps", "8"],
        ["verify", plan],
        ["data", "digits"],
    ):
        done = run(*words, "--quiet")
        assert (done.code, done.err) == (0, "")
        assert done.out


def test_csv_is_a_table(run):
    done = run("compare", "--steps", "16", "--epochs", "2", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    names = [
        "dp-sgd",
        "lambda-cgd",
        "tree",
        "sqrt-toeplitz",
        "bisr",
        "epoch-restarts",
        "dp-mf",
        "dp-mf+",
    ]
    assert [row["name"] for row in rows] == names
    assert rows[2]["label"] == "tree, full Honaker"  # a comma within
    assert rows[6]["memory_frontier"] == "True"  # DP-MF: nothing has less noise
    assert float(rows[0]["average_relative"]) == 1
    assert rows[0]["gap"] == ""


def test_no_line_ends_in_blanks_and_nothing_is_cut_off(run):
    done = run(
        "compare",
        "--steps",
        "16",
        "-m",
        "damped:rho=0.123456,final_weight=3.5",
        "-m",
        "tree:estimator=online",
    )
    assert "damped, ρ = 0.1235, final weight = 3.5 " in done.out
    assert "tree, online" in done.out
    assert "…" not in done.out
    assert all(line == line.rstrip() for line in done.out.splitlines())


@pytest.mark.slow
def test_a_narrow_terminal_gets_two_tables(tmp_path):
    import shutil
    import subprocess

    from tests.cli.conftest import ANTIPHASE

    if shutil.which("script") is None:
        pytest.skip("no script command: there is no terminal to try")
    words = shlex.join([*ANTIPHASE, *["compare", "--steps", "16", "--epochs", "2"]])
    done = subprocess.run(
        ["script", "-qec", f"stty cols 80; {words}", "/dev/null"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "Cost" in done.stdout
    assert "designing" in done.stdout  # progress, where somebody looks


@pytest.mark.slow
def test_what_a_page_shows_is_written(run, tmp_path):
    done = run(
        "compare",
        "--steps",
        "16",
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
        "--html",
        "c.html",
        "--figures",
        "f",
    )
    assert "Written to c.html" in done.out
    text = (tmp_path / "c.html").read_text()
    assert "antiphase compare --steps 16 --epsilon 1" in text
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == [
        "memory.png", "memory.svg", "noise.png", "noise.svg", "spectrum.png", "spectrum.svg", "time.png", "time.svg",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            ["dp-sgd:poisson", "dp-mf"],
            ["DP-SGD, Poisson batches leaves least noise", "needs true Poisson sampling"],
        ),
        (["dp-sgd:poisson"], ["needs true Poisson sampling"]),
        (
            ["dp-sgd", "dp-mf"],
            ["DP-MF leaves least noise in the final model", "times the certified least"],
        ),
    ],
)
def test_what_a_page_says_is_so(run, tmp_path, chosen, said):
    words = ["compare", "--steps", "64", "--epsilon", "0.5", "--delta", "1e-6", "--html", "c.html"]
    assert run(*words, *(word for name in chosen for word in ("-m", name))).code == 0
    text = " ".join(re.sub(r"<[^>]+>", "", (tmp_path / "c.html").read_text()).split())
    for claim in [*said, "promises ε = 0.5 at δ = 1e-06"]:
        assert claim in text


@pytest.mark.slow
def test_a_design_for_sampled_batches_has_the_best_number_of_bands(run, tmp_path):
    words = [
        "design",
        "toeplitz",
        "--steps",
        "32",
        "--sampler",
        "cyclic-poisson",
        "--sampling-rate",
        "0.02",
        "-o",
        "m",
    ]
    found = strict(
        run(*words, "--bands", "auto", "--epsilon", "1", "--delta", "1e-6", "--json").out
    )
    made = ap.load(tmp_path / "m")
    assert found["options"] == {"bands": made.factorization.bands}
    assert (
        (found["sampler"], found["sampling_rate"])
        == (made.sampling.name, made.sampling.rate)
        == ("cyclic-poisson", 0.02)
    )
    least = min(found["tried"], key=lambda t: t["noise_multiplier"] ** 2 * t["error"])
    assert (least["bands"], least["noise_multiplier"]) == (
        made.factorization.bands,
        made.noise_multiplier,
    )
    assert found["error"] == pytest.approx(least["error"])
    given = strict(
        run(*words, "--bands", "5", "--noise-multiplier", "2", "--delta", "1e-6", "--json").out
    )
    assert (given["options"], given["tried"], given["gap"]) == ({"bands": 5}, [], None)
    again = strict(
        run("calibrate", "m", "--noise-multiplier", "2", "--delta", "1e-6", "--sampler", "cyclic-poisson",
            "--sampling-rate", "0.02", "--json").out
    )  # fmt: skip
    assert (again["sampler"], again["epsilon"]) == ("cyclic-poisson", given["epsilon"])


@pytest.mark.slow
def test_compare_says_what_a_sampler_amplifies(run, tmp_path):
    words = [
        "compare",
        "--steps",
        "32",
        "--epochs",
        "4",
        "--epsilon",
        "0.5",
        "--delta",
        "1e-6",
        "--sampling-rate",
    ]
    words += [
        "0.0625",
        "--sampler",
        "cyclic-poisson",
        "-m",
        "dp-sgd:fixed-order",
        "-m",
        "toeplitz",
        "-m",
        "tree",
    ]
    done = run(*words, "--html", "c.html")
    assert "cyclic Poisson at rate 0.0625" in done.out
    rows = {line.split("  ")[0].strip(): line.split() for line in done.out.splitlines()}
    (best,) = [label for label in rows if label.startswith("Toeplitz, bands = ")]
    assert "yes" in rows[best]
    assert "no" in rows["DP-SGD"]
    assert "no" in rows["tree, full Honaker"]
    assert "sampled batches are 0.5 times as large" in done.err
    text = " ".join(re.sub(r"<[^>]+>", "", (tmp_path / "c.html").read_text()).split())
    for claim in (
        "tree, full Honaker is not amplified",
        "Least noise for the memory",
        "not amplified",
        "frontier",
    ):
        assert claim in text


@pytest.mark.slow
def test_exit_codes_of_a_process(tmp_path):
    """0 done, 2 refused or not understood; standard output is clean but for a result."""
    for words, code in (
        (["calibrate", "--epsilon", "1", "--delta", "1e-5"], 0),
        (["statement", "absent.antiphase"], 2),
        (["design", "dp-mf+", "--steps", "8", "--tau", "0"], 2),
        (["design", "dp-mf"], 2),
    ):
        done = process(*words, cwd=tmp_path, check=False)
        assert done.returncode == code
        assert bool(done.stdout) == (code == 0)
        assert bool(done.stderr) == (code != 0)
        assert "Traceback" not in done.stderr


def test_verify_answers_yes_no_or_not_at_all(run, plan, tmp_path):
    """0: all holds; 1: a check fails, and says which; 2: a damaged file, of which nothing is known."""
    assert run("verify", plan, "--statement", "statement.json").code == 0
    said = json.loads((tmp_path / "statement.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(said | {"epsilon": said["epsilon"] / 2}))
    done = run("verify", plan, "--statement", "other.json")
    assert done.code == 1
    assert "FAILS" in done.out
    assert "Do not rely on it" in done.err
    asked = run("verify", plan, "--statement", "other.json", "--json")
    assert (asked.code, strict(asked.out)["holds"]) == (1, False)
    (tmp_path / "cut.antiphase").write_bytes((tmp_path / plan).read_bytes()[:-10])
    done = run("verify", "cut.antiphase", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: cut.antiphase")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["--help"], "0 done; 1 the answer is no"),
        (
            ["verify", "--help"],
            "1: a check fails; 2: it could not be checked, because the file is missing or damaged",
        ),
        (["audit", "--help"], "1: the claim is false; 2: there was no audit"),
    ],
)
def test_help_says_what_codes_mean(run, command, said):
    assert said in " ".join(run(*command).out.split())


def test_the_gap_is_the_same_number_everywhere(run):
    """Error over bound, less 1: large or small, in words or in JSON."""
    for name, said in (("dp-sgd", "   error over bound, less 1"), ("dp-mf", "")):
        words = ["design", name, "--steps", "16", "--epochs", "2"]
        found = strict(run(*words, "--json").out)
        assert found["gap"] == pytest.approx(found["error"] / found["lower_bound"] - 1, abs=1e-12)
        (line,) = [line for line in run(*words).out.splitlines() if line.startswith("gap ")]
        assert line.split(maxsplit=1)[1] == (
            f"{found['gap']:.3g}{said}" if said else f"{found['gap']:.1e}"
        )


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    import subprocess
    import sys

    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m antiphase.cli data digits --json | head -c 1", shell=True,
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_advice_from_a_spectrum(run, tmp_path):
    """A file of curvatures is enough: a mechanism that can be typed in, what it gains, and a range of rates."""
    (tmp_path / "list.json").write_text("[0.01, 0.1, 1.0]")
    (tmp_path / "both.json").write_text('{"values": [0.01, 0.1, 1.0], "weights": [100, 10, 1]}')
    words = [
        "recommend",
        "--steps",
        "32",
        "--lr",
        "0.5",
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
        "--spectrum",
    ]
    for name in ("list.json", "both.json"):
        found = strict(
            run(*words, name, "--batch-size", "64", "--initial-gap", "2.3", "--json").out
        )
        assert [gain["over"].split(",")[0] for gain in found["gains"]] == [
            "DP-SGD",
            "DP-MF",
            "DP-MF⁺",
        ]
        assert found["noise"]["DP-SGD"] == 1
        assert 0 < found["learning_rates"]["low"] <= found["learning_rates"]["high"]
    done = run(*words, "both.json")
    assert "111 directions, curvatures up to 1" in " ".join(done.out.split())
    assert "no private data were used" in " ".join(done.out.split())
    typed = shlex.split(done.out.split("To use it: antiphase ")[1])
    assert run(*typed).code == 0
    (tmp_path / "bad.json").write_text("{}")
    for options, word in (
        (["bad.json"], "bad.json must have"),
        (["both.json", "--lr", "9"], "diverges"),
    ):
        done = run(*words, *options)
        assert (done.code, done.out) == (2, "")
        assert word in done.err
