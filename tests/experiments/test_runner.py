"""A run keeps finished cells, repeats none, and does not mix versions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphase import __version__
from experiments import NAMES, runner, text
from experiments.runner import run
from tests.experiments import toy

ROOT = Path(__file__).parents[2]
slow = pytest.mark.slow


def lines(folder):
    return [json.loads(line) for line in (folder / "toy.jsonl").read_text().splitlines()]


@slow
def test_parallel_and_sequential_runs_agree(tmp_path):
    """The same results in the order of the cells, on one thread each, with versions and seeds."""
    cells = toy.cells(5)
    seen = []
    one, several = (
        run(
            toy.study(cells),
            tmp_path / str(jobs),
            jobs=jobs,
            progress=seen.append,
        )
        for jobs in (1, 2)
    )
    for record in (one, several):
        assert [cell["settings"] for cell in record["cells"]] == cells
        assert [cell["result"]["square"] for cell in record["cells"]] == [0, 1, 4, 9, 16]
        assert {cell["result"]["threads"] for cell in record["cells"]} == {"1"}
        assert record["summary"] == {"sum": 30}
        assert record["command"] == "python -m experiments toy"
        assert record["seeds"] == [0, 1, 2, 3, 4]
        assert {"antiphase", "python", "numpy"} <= record["versions"].keys()
        assert record["seconds"].keys() == {"compute", "wall"}
    assert [c["result"] for c in one["cells"]] == [c["result"] for c in several["cells"]]
    assert (seen[0].done, seen[0].total, seen[0].task) == (0, 5, "")
    assert sorted(report.done for report in seen) == sorted([*range(6), *range(6)])
    assert runner.read(toy.study(cells), tmp_path / "1") == one


@slow
def test_finished_cells_are_not_repeated(tmp_path):
    first = run(toy.study(toy.cells(2)), tmp_path, jobs=1)
    more = run(toy.study(toy.cells(4)), tmp_path, jobs=2)
    assert (first["reused"], more["reused"]) == (0, 2)
    assert [line["cell"]["number"] for line in lines(tmp_path)[:2]] == [0, 1]
    assert len(lines(tmp_path)) == 4
    again = run(toy.study(toy.cells(4)), tmp_path)
    assert again["reused"] == 4
    assert again["cells"] == more["cells"]


@slow
def test_a_killed_run_continues(tmp_path):
    """After SIGKILL finished cells stay, no worker survives, and the next run does the rest."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.experiments.toy", str(tmp_path)]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
    began = time.monotonic()
    while not (tmp_path / "toy.jsonl").exists() or len(lines(tmp_path)) < 2:
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "toy.json").exists()
    kept = len(lines(tmp_path))
    while _members(process.pid):
        assert time.monotonic() - began < 90, "workers outlive the run"
        time.sleep(0.1)
    record = run(toy.study(toy.cells(6, sleep=0.5)), tmp_path, jobs=2)
    assert record["reused"] == kept >= 2
    assert record["summary"] == {"sum": 55}


def _members(group):
    """Processes of the group that are alive."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = status.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if its_group == str(group) and state != "Z":
            found.append(status)
    return found


@slow
def test_a_torn_last_line_costs_its_cell_alone(tmp_path):
    run(toy.study(toy.cells(3)), tmp_path, jobs=1)
    path = tmp_path / "toy.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    record = run(toy.study(toy.cells(4)), tmp_path, jobs=1)
    assert record["reused"] == 2
    assert record["summary"] == {"sum": 14}
    again = run(toy.study(toy.cells(4)), tmp_path, jobs=1)
    assert again["reused"] == 4


@slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "ArithmeticError: 1 cannot be squared"),
        ("no number", "ValueError"),
        ("dies", "abrupt"),
    ],
)
def test_a_cell_that_fails_is_reported_and_the_others_are_kept(tmp_path, how, said):
    """No record is written as if it were complete; what could be done is done."""
    cells = toy.cells(3)
    cells[1]["how"] = how
    with pytest.raises(runner.StudyError, match=said) as error:
        run(toy.study(cells), tmp_path, jobs=1)
    assert "of 3 cells failed" in str(error.value)
    assert not (tmp_path / "toy.json").exists()
    assert said in (tmp_path / "toy.errors").read_text()
    if how != "dies":  # then it is not known who was at work, and nobody is left
        assert [line["cell"]["number"] for line in lines(tmp_path)] == [0, 2]


@slow
def test_results_of_another_version_or_revision_are_left_out_and_counted(tmp_path, monkeypatch):
    run(toy.study(toy.cells(2)), tmp_path, jobs=1)
    monkeypatch.setattr(runner, "__version__", "0.0.9")
    record = run(toy.study(toy.cells(2)), tmp_path, jobs=1)
    assert (record["reused"], record["stale"]) == (0, 2)
    assert run(toy.study(toy.cells(2)), tmp_path, jobs=1)["reused"] == 2
    record = run(toy.study(toy.cells(2), revision=2), tmp_path, jobs=1)
    assert (record["reused"], record["stale"]) == (0, 4)


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """As many users as the text study needs at full size, so that nothing is downloaded."""
    said = [
        {"user": f"u{i}", "text": "so it is", "split": ("train", "val", "test")[i % 3]}
        for i in range(3 * 2048)
    ]
    (tmp_path / "users.jsonl").write_text("\n".join(map(json.dumps, said)))
    monkeypatch.setenv(text.SOURCE, str(tmp_path / "users.jsonl"))
    text._texts.cache_clear()
    yield
    text._texts.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("name", NAMES)
def test_every_module_is_a_study(name):
    """And its settings are JSON, each cell of its own."""
    study = runner.load_study(name)
    assert name == study.NAME
    for full in (False, True):
        cells = study.cells(full)
        assert json.loads(json.dumps(cells, allow_nan=False)) == cells
        assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells) > 0
    assert runner.version(study) == f"{__version__}/{study.REVISION}"


def test_an_unknown_study_is_refused():
    with pytest.raises(ValueError, match=r"name = 'cubic' must be one of matrices, quadratic"):
        runner.load_study("cubic")
