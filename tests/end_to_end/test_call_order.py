"""The order of calls through the pipelines: no stage is entered again after a later one."""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase import cli
from antiphase.torch import PrivacyEngine
from tests.federated import setting

pytestmark = [pytest.mark.issue(22), pytest.mark.slow]

PACKAGE = Path(ap.__file__).parent

# {stage: its entry functions}, in the order of the pipeline. A function is "module:name".
DESIGN = {
    "design": ["design:design"],
    "problem": ["problem:Problem.banded"],
    "solver": ["solvers/multi_epoch:multi_epoch_optimum"],
    "factorization": ["factorizations/dense:Dense.__post_init__"],
}
PRIVATE_STEP = {
    "plan": ["torch/plan:plan_training", "design:design", "mechanism:calibrate"],
    "validate": ["torch/validation:validate"],
    "wrap": ["torch/wrapping:wrap"],
    "step": ["torch/private_optimizer:PrivateStep.step"],
}
FEDERATED_ROUND = {
    "select": ["federated/roster:Roster.choose"],
    "collect and clip": ["federated/server:Server.receive", "federated/clipping:clip"],
    "noise": ["noise/stream:NoiseStream.next"],
    "release": ["federated/server_optimizer:ServerOptimizer.step"],
}
DEMO = {
    "load": ["data/__init__:load"],
    "train": ["torch/training:train"],
    "report": ["demo:write", "reporting/page:write"],
}


@dataclass(frozen=True)
class Call:
    """A call of a function of the package, below so many others of the package."""

    depth: int
    function: str


def recorded(work):
    """The calls that ``work()`` makes in this thread, in their order."""
    calls, stack = [], []

    def profile(frame, event, _):
        path = frame.f_code.co_filename
        if not path.startswith(f"{PACKAGE}/"):
            return
        if event == "call":
            module = path.removeprefix(f"{PACKAGE}/").removesuffix(".py")
            calls.append(Call(len(stack), f"{module}:{frame.f_code.co_qualname}"))
            stack.append(frame)
        elif event == "return" and stack and stack[-1] is frame:
            stack.pop()

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def outline(calls, depth):
    """The calls down to a depth, without generated functions; repeated calls as one line."""
    named = [c for c in calls if c.depth <= depth and "<" not in c.function]
    lines = []
    for call, several in itertools.groupby(named):
        count = sum(1 for _ in several)
        lines.append("  " * (call.depth + 2) + call.function + f" × {count}" * (count > 1))
    return "\n".join(lines)


def require_order(calls, stages):
    """Check that every entry function is called, and none once a later stage has begun."""
    stage_of = {function: name for name, functions in stages.items() for function in functions}
    order = list(stages)
    latest = -1
    for call in calls:
        if (stage := stage_of.get(call.function)) is not None:
            assert order.index(stage) >= latest, f"{call.function} again, after {order[latest]}"
            latest = order.index(stage)
    not_called = set(stage_of) - {call.function for call in calls}
    assert not not_called, f"{not_called} not called"


def test_a_design_derives_its_problem_once_and_then_only_solves(record_property):
    """16 epochs of 128 steps: design → problem → solver → factorization."""
    calls = recorded(lambda: ap.design("dp-mf", steps=2048, epochs=16))
    record_property("shown", f"design, {len(calls):,} calls\n{outline(calls, 5)}")
    require_order(calls, DESIGN)
    functions = [call.function for call in calls]
    assert functions.count("problem:Problem.banded") == 1


def test_a_private_step_plans_validates_wraps_and_steps(record_property):
    """`make_private_with_epsilon` and one step."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))

    def one_step():
        module, private, loader = PrivacyEngine(mechanism="dp-mf").make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(dataset, batch_size=16),
            epochs=4,
            target_epsilon=8.0,
            target_delta=1e-5,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        inputs, targets = next(iter(loader))
        private.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        private.step()

    calls = recorded(one_step)
    record_property("shown", f"a private step, {len(calls):,} calls\n{outline(calls, 2)}")
    require_order(calls, PRIVATE_STEP)


def test_a_federated_round_selects_collects_adds_noise_and_releases(record_property):
    """One round of four users."""
    server = setting.server(setting.mechanism(rounds=6))

    def one_round():
        users = server.begin_round(setting.USERS)
        setting.answer_all(server, users)
        server.finish_round()

    calls = recorded(one_round)
    record_property("shown", f"a federated round, {len(calls):,} calls\n{outline(calls, 2)}")
    require_order(calls, FEDERATED_ROUND)


@pytest.mark.long
def test_the_demo_loads_trains_and_reports(record_property, tmp_path, monkeypatch, capsys):
    """One seed: data, then every training as above, then the report."""
    words = ["antiphase", "demo", "--trials", "1", "--quiet", "--output", str(tmp_path / "demo")]
    monkeypatch.setattr(sys, "argv", words)

    def demo():
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, capsys.readouterr().err

    calls = recorded(demo)
    starts = [n for n, call in enumerate(calls) if call.function == "torch/training:train"]
    depth = calls[starts[0]].depth
    record_property("shown", f"antiphase demo, {len(calls):,} calls\n{outline(calls, depth)}")
    require_order(calls, DEMO)
    trainings = [calls[a:b] for a, b in itertools.pairwise([*starts, len(calls)])]
    private = [
        training
        for training in trainings
        if any(call.function == "torch/wrapping:wrap" for call in training)
    ]
    assert len(private) >= 8  # all but Poisson batches and the model without privacy
    for training in private:
        require_order(training, PRIVATE_STEP)


def test_an_entry_function_that_is_called_late_is_noticed():
    stages = {"first": ["a:f"], "second": ["b:g", "b:h"]}
    right = [Call(0, "a:f"), Call(0, "a:f"), Call(1, "b:g"), Call(0, "b:h"), Call(0, "b:g")]
    require_order(right, stages)
    with pytest.raises(AssertionError, match="a:f again, after second"):
        require_order([Call(0, "a:f"), Call(1, "b:g"), Call(1, "a:f")], stages)
    with pytest.raises(AssertionError, match=r"b:h.* not called"):
        require_order(right[:3], stages)
