"""The page on federated training: its diffs are ten lines, and both ends of them train."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("sklearn")

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tests.federated.grid import LocalGrid

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower_app"


class AppGrid(LocalGrid):
    """Nodes that run the app's own ClientApp."""

    def __init__(self, client, nodes):
        super().__init__([f"node {i}" for i in range(nodes)])
        self.client, self.losses = client, []

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(i)
            node = message.metadata.dst_node_id
            config = {"partition-id": node - 100, "num-partitions": len(self.names)}
            replies.append(self.client(message, Context(1, node, config, RecordDict(), {})))
        return replies


def diffs():
    """(before, after) of each diff on the page, and how many lines it changes."""
    page = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    for block in re.findall(r"```diff\n(.*?)```", page, re.DOTALL):
        lines = block.splitlines()
        before, after = (
            "".join(line[1:] + "\n" for line in lines if line[:1] in (" ", "", sign))
            for sign in "-+"
        )
        removed, added = (sum(line.startswith(sign) for line in lines) for sign in "-+")
        yield before, after, max(removed, added)


def test_ten_lines_change_and_the_example_is_what_they_make():
    (_, server, first), (_, project, second) = diffs()
    assert first + second <= 10
    assert server == (APP / "digits_app" / "server_app.py").read_text(encoding="utf-8")
    for part in re.split(r"\n *\.\.\.\n", project):
        assert part.strip() in (APP / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_python_on_the_page_runs(capsys):
    page = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "federated.md", "exec"), {})  # noqa: S102
    assert "(8, 1e-05)-differentially private for each user" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.fixture
def app(monkeypatch, tmp_path):
    """The app's modules, with a server of the text given."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.syspath_prepend(str(APP))
    for name in [name for name in sys.modules if name.startswith("digits_app")]:
        monkeypatch.delitem(sys.modules, name)
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]

    def train(source):
        names: dict = {}
        exec(compile(source, "server_app", "exec"), names)  # noqa: S102
        grid = AppGrid(
            importlib.import_module("digits_app.client_app").app, config["min-available-nodes"]
        )
        task, seen = importlib.import_module("digits_app.task"), []
        names["main"].__globals__["evaluate"] = lambda number, record: seen.append(
            task.evaluate(number, record)
        )
        names["app"](
            grid, Context(1, 0, {}, RecordDict(), config | {"folder": str(tmp_path / "state")})
        )
        return [metrics["accuracy"] for metrics in seen]

    return train


@pytest.mark.slow
def test_both_ends_train(app, capsys):
    (before, after, _), _ = diffs()
    plain = app(before)
    assert "private for each" not in capsys.readouterr().out
    private = app(after)
    said = " ".join(capsys.readouterr().out.split())
    assert "(8, 1e-05)-differentially private for each user" in said
    assert len(plain) == len(private) == 41
    with capsys.disabled():
        print(
            f"\n  accuracy on digits: {plain[-1]:.1%} without privacy, {private[-1]:.1%} at ε = 8",
            end="",
        )
    assert plain[-1] > 0.9
    assert private[-1] > 0.6
