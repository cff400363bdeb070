"""The gradient check runs in every mode, sees none of the data, and has no side effects."""

import warnings

import pytest
import torch
from torch import nn

from antiphase.errors import AntiphaseWarning, PerExampleGradientError
from antiphase.torch import gradient_check
from tests.torch.setting import Training, data, small_model

pytestmark = pytest.mark.issue(21)
MODES = ["hooks", "functorch", "ghost"]


@pytest.mark.parametrize("mode", MODES)
def test_a_norm_below_that_of_the_gradient_is_refused(mode, monkeypatch):
    """An example is divided by its norm: a norm 1 % too small is a contribution 1 % too large."""
    name = "gradients_and_bounds" if mode == "ghost" else "example_norms"
    real = getattr(gradient_check, name)

    def smaller(*arguments):
        found = real(*arguments)
        return (found[0], found[1] * 0.99) if mode == "ghost" else (found[0] * 0.99, found[1])

    monkeypatch.setattr(gradient_check, name, smaller)
    with pytest.raises(PerExampleGradientError, match="norm of an example came out below"):
        Training(mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_gradient_is_refused_by_name(mode, monkeypatch):
    """One computed gradient is changed by 1 %."""
    real = gradient_check._computed

    def changed(*arguments):
        found, norms = real(*arguments)
        return {**found, "2.weight": found["2.weight"] * 1.01}, norms

    monkeypatch.setattr(gradient_check, "_computed", changed)
    with pytest.raises(
        PerExampleGradientError, match=r"2\.weight.*differs from that of a batch of one"
    ):
        Training(mode=mode)


class Seen(nn.Module):
    """Keeps its inputs."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = small_model(), []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.inner(x)


@pytest.mark.parametrize("mode", MODES)
def test_the_check_sees_only_ranges_of_the_data_and_changes_nothing(mode):
    """Weights, gradients, generators and modes are unchanged; no example is among the inputs."""
    model = Seen()
    before = [p.detach().clone() for p in model.parameters()]
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    Training(model=model, mode=mode)
    assert torch.equal(torch.rand(3), expected)
    assert all(map(torch.equal, before, model.parameters()))
    assert model.training
    for p in model.parameters():
        assert p.grad is None
        assert getattr(p, "grad_sample", None) is None
    rows = torch.cat([x.flatten(0, -2) for x in model.seen])
    assert len(rows) > 8
    assert not any(torch.equal(row, example) for row in rows for example in data().tensors[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_check_that_cannot_run_warns_and_is_stated(mode):
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x, more):
            return self.layer(x) + more["shift"]

    with pytest.warns(AntiphaseWarning, match="the gradient check was not made.*probe_inputs"):
        training = Training(model=TwoInputs(), mode=mode)
    assert "gradient check was not made (the model could not be called" in str(
        training.engine.statement()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", AntiphaseWarning)
        inputs = lambda n: (torch.rand(n, 5), {"shift": torch.zeros(n, 2)})  # noqa: E731
        training = Training(model=TwoInputs(), mode=mode, probe_inputs=inputs)
    assert "gradient check" not in str(training.engine.statement())


def test_trained_parameters_are_perturbed_in_proportion_and_others_are_not():
    """Zeros too, such as LoRA's B, which would hide gradients of A."""
    model = nn.ParameterDict(
        {
            "tens": torch.full((1000,), 10.0),
            "zeros": torch.zeros(1000),
            "frozen": nn.Parameter(torch.ones(1000), requires_grad=False),
        }
    )
    gradient_check._perturb(model)
    scale = gradient_check.PERTURBATION
    tens, zeros = model["tens"].detach(), model["zeros"].detach()
    assert float((tens - 10).square().mean().sqrt()) == pytest.approx(10 * scale, rel=0.1)
    assert float(zeros.square().mean().sqrt()) == pytest.approx(0.1 * scale, rel=0.1)
    assert (model["frozen"] == 1).all()


def test_the_likely_cause_is_that_of_the_layer():
    layer, sparse = nn.Linear(2, 2), nn.Embedding(3, 2, scale_grad_by_freq=True)
    model = nn.ModuleList([layer, nn.Linear(2, 2), sparse, nn.Linear(2, 2)])
    model[3].weight = layer.weight
    assert "tied weights" in gradient_check._cause(model, "0.weight")
    assert "outside its module (Linear)" in gradient_check._cause(model, "1.weight")
    assert "scale_grad_by_freq" in gradient_check._cause(model, "2.weight")
