"""The Python code in the README runs."""

import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_the_python_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, design, theory = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    names: dict = {}
    exec(  # noqa: S102
        compile(
            design.replace("steps=512", "steps=64").replace("tau=512", "tau=64"),
            "README.md",
            "exec",
        ),
        names,
    )
    assert names["f"].gap < 1e-8
    model = torch.nn.Linear(3, 2)
    dataset = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.zeros(8).long())
    names |= {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    names["loader"] = torch.utils.data.DataLoader(dataset, batch_size=4)
    exec(compile(train, "README.md", "exec"), names)  # noqa: S102
    assert names["engine"].get_epsilon(1e-5) <= 8
    exec(compile(theory, "README.md", "exec"), names)  # noqa: S102
