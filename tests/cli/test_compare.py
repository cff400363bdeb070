"""``antiphase compare``: a table, CSV, and a page whose sentences are true."""

import csv
import io
import re
import shlex
import shutil
import subprocess

import pytest

from tests.cli.conftest import ANTIPHASE


def page_text(path):
    """The text of a page, without tags."""
    return " ".join(re.sub(r"<[^>]+>", "", path.read_text()).split())


def test_csv_is_a_table(run):
    done = run("compare --steps 16 --epochs 2 --csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    names = "dp-sgd lambda-cgd tree sqrt-toeplitz bisr epoch-restarts dp-mf dp-mf+"
    assert [row["name"] for row in rows] == names.split()
    assert rows[2]["label"] == "tree, full Honaker"  # with a comma
    assert rows[6]["memory_frontier"] == "True"  # DP-MF: nothing has less noise
    assert float(rows[0]["average_relative"]) == 1
    assert rows[0]["gap"] == ""


def test_no_line_ends_in_blanks_and_nothing_is_cut_off(run):
    damped = "damped:rho=0.123456,final_weight=3.5"
    done = run(f"compare --steps 16 -m {damped} -m tree:estimator=online")
    assert "damped, ρ = 0.1235, final weight = 3.5 " in done.out
    assert "tree, online" in done.out
    assert "…" not in done.out
    assert all(line == line.rstrip() for line in done.out.splitlines())


@pytest.mark.slow
def test_a_narrow_terminal_gets_two_tables(tmp_path):
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
    assert done.stdout.count("mechanism") == 2
    assert "designing" in done.stdout  # the progress bar


@pytest.mark.slow
def test_page_and_figures_are_written(run, tmp_path):
    done = run("compare --steps 16 --epsilon 1 --delta 1e-5 --html c.html --figures f")
    assert "Written to c.html" in done.out
    assert "antiphase compare --steps 16 --epsilon 1" in (tmp_path / "c.html").read_text()
    names = [f"{name}.{kind}" for name in ("memory", "noise", "spectrum", "time")
             for kind in ("png", "svg")]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanisms", "claims"),
    [
        (
            "-m dp-sgd:poisson -m dp-mf",
            [
                "DP-SGD, Poisson batches leaves least noise in the final model: ",
                "On ordinary batches DP-MF leaves least: ",
                "needs true Poisson sampling",
            ],
        ),
        ("-m dp-sgd", ["needs true Poisson sampling", "On ordinary batches DP-SGD, fixed order"]),
        ("--separation 64 -m dp-mf", ["DP-MF leaves least noise", "times the certified least"]),
    ],
)
def test_the_page_draws_the_right_conclusion(run, tmp_path, mechanisms, claims):
    words = "compare --steps 64 --epsilon 0.5 --delta 1e-6 --html c.html"
    assert run(words, mechanisms).code == 0
    text = page_text(tmp_path / "c.html")
    for claim in [*claims, "promises ε = 0.5 at δ = 1e-06"]:
        assert claim in text


@pytest.mark.slow
def test_compare_tells_which_mechanisms_a_sampler_amplifies(run, tmp_path):
    words = (
        "compare --steps 32 --epochs 4 --epsilon 0.5 --delta 1e-6 --sampling-rate 0.0625 "
        "--sampler cyclic-poisson -m toeplitz -m tree --html c.html"
    )
    done = run(words)
    assert "cyclic Poisson at rate 0.0625" in done.out
    rows = {line.split("  ")[0].strip(): line.split() for line in done.out.splitlines()}
    best = next(label for label in rows if label.startswith("Toeplitz, bands = "))
    assert "yes" in rows[best]
    assert "no" in rows["DP-SGD, fixed order"]
    assert "yes" in rows["DP-SGD, Poisson batches"]
    assert "no" in rows["tree, full Honaker"]
    assert "sampled batches are 0.5 times as large" in done.err
    text = page_text(tmp_path / "c.html")
    for claim in ("tree, full Honaker is not amplified", "Least noise for the memory", "frontier"):
        assert claim in text
