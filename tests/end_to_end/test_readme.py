"""The Python code in the README runs."""

import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MECHANISMS = ("DP-MF", "DP-MF⁺", "damped, ρ = 0.99")  # on ordinary batches


@pytest.mark.issue(23)
def test_the_headlines_follow_from_the_table():
    """The leads of the demo's headlines are differences of the table, to the last digit shown."""
    text = " ".join((ROOT / "README.md").read_text().split())
    table = {
        label: [
            float(mean)
            for mean in re.findall(rf"{re.escape(label)} ([\d.]+) ± \S+ ([\d.]+)", text)[0]
        ]
        for label in ("DP-SGD, Poisson batches", "DP-SGD, fixed order", *MECHANISMS)
    }
    for column, epsilon in enumerate((1, 8)):
        headline = re.search(
            rf"The best private result at ε = {epsilon} is (.*?) fixed order\.", text
        )
        assert headline is not None
        best = max(values[column] for values in table.values())
        assert headline[1].startswith(f"{best} %")
        ordinary = max(table[label][column] for label in MECHANISMS)
        leads = re.findall(r"([+−][\d.]+) ± [\d.]+ points against DP-SGD", headline[1])
        rivals = (
            table[label][column] for label in ("DP-SGD, Poisson batches", "DP-SGD, fixed order")
        )
        for lead, rival in zip(leads, rivals, strict=True):
            assert float(lead.replace("−", "-")) == pytest.approx(ordinary - rival, abs=0.11)


@pytest.mark.issue(23)
def test_the_comparison_with_dp_sgd_is_that_of_the_results():
    """First with DP-SGD on Poisson batches, then with DP-SGD in a fixed order."""
    text = " ".join((ROOT / "README.md").read_text().split())
    results = " ".join((ROOT / "docs" / "results.md").read_text().split())
    claim = re.search(r"\*DP-SGD\* means .*? up to (\d+) points on MNIST", text)
    assert claim is not None
    assert claim[0].index("Poisson") < claim[0].index("fixed order")
    assert f"DP-MF⁺ is ahead by up to {claim[1]} points" in results
    assert "4.7 points behind at ε = 0.1, level at 0.31" in claim[0]
    assert "4.7 points behind at ε = 0.1, level at 0.31" in results
    (poisson,) = re.findall(
        r"one epoch, batches of 29.*?Poisson batches \|(.*?)\| DP", results, re.I
    )[:1]
    assert poisson.split("|")[3].split("±")[0].strip() == "86.2"
    assert "89.1 % against 86.2 %" in claim[0]
    row = re.search(r"DP-MF⁺ over DP-SGD \| -0.7 .*? \| .*? \| \+0.4 .*? \| \+1.2 ", results)
    assert row is not None
    assert "0.7 points behind at ε = 1, 0.4 ahead at 4 and 1.2 at 8" in claim[0]


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
