"""What the README shows is what happens."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def test_the_python_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    design, train = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(design.replace("steps=512", "steps=64").replace("tau=512", "tau=64"), "README.md", "exec"), names)  # noqa: S102
    assert names["f"].gap < 1e-8
    model = torch.nn.Linear(3, 2)
    dataset = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.zeros(8).long())
    names |= {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    names["loader"] = torch.utils.data.DataLoader(dataset, batch_size=4)
    exec(compile(train, "README.md", "exec"), names)  # noqa: S102
    assert names["engine"].get_epsilon(1e-5) <= 8


def test_the_comparison_is_clean_for_scripts_and_refuses_with_a_reason(tmp_path):
    script = [sys.executable, str(ROOT / "examples" / "compare.py"), "--output", str(tmp_path)]
    done = subprocess.run(
        [*script, "--steps", "16", "--epochs", "2", "--json"], capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout)["mechanisms"]
    assert [row["name"] for row in rows][-1] == "dp-mf+"
    assert all(row["over_optimum"] >= 1 - 1e-9 for row in rows)
    assert (tmp_path / "comparison.png").exists()
    assert (tmp_path / "comparison.svg").exists()
    refused = subprocess.run([*script, "--steps", "0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "steps = 0" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_study_writes_its_numbers_and_figures(tmp_path):
    command = [sys.executable, "-m", "antiphase.studies.matrices", "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    data = json.loads((tmp_path / "matrices.json").read_text())["results"]
    assert data["weight"][2][2] == 1.0
    assert data["weight"][5][2] == -1.0
    assert (tmp_path / "matrices.svg").exists()
