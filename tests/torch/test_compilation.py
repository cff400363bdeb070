"""torch.compile: training steps run eagerly, with the same bits; evaluation runs compiled."""

import warnings

import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.errors import AntiphaseWarning, SettingsError
from antiphase.torch import PrivacyEngine
from tests.torch.setting import Training, data, make_private, small_model

MODES = ["hooks", "ghost"]


@pytest.fixture
def compiled():
    """The graphs that were compiled; ``compiled.backend`` is a backend that runs them as they are.

    The default backend, inductor, needs a C++ compiler and seconds.
    """
    torch._dynamo.reset()

    class Compiled(list):
        def backend(self, graph, _):
            self.append(graph)
            return graph

    return Compiled()


def in_place(model, **options):
    model.compile(**options)
    return model


def trained(model, mode, around=lambda module: module, **options):
    """A training of two epochs, with the module that make_private returns wrapped in ``around``."""
    training = Training(model=model, mode=mode, epochs=2, **options)
    training.module = around(training.module)
    return training.run()


@pytest.mark.issue(23)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compiling", [torch.compile, in_place], ids=["wrapped", "in place"])
def test_a_model_that_was_compiled_before_trains_with_the_same_bits(compiling, mode, compiled):
    """Nothing is compiled in a training step, and a warning says so; evaluation is compiled."""
    expected = trained(small_model(), mode).weights()
    model = small_model()
    with pytest.warns(AntiphaseWarning, match="Training steps run it eagerly"):
        training = trained(compiling(model, backend=compiled.backend), mode)
    assert torch.equal(training.weights(), expected)
    assert not compiled
    names = [name for name, _ in model.named_parameters()]
    assert list(training.release.shapes) == names, "noise has the names of the plain model"
    before = training.module(data().tensors[0]).detach()
    training.module.eval()
    with torch.no_grad():
        assert torch.equal(training.module(data().tensors[0]), before)
    assert compiled


@pytest.mark.issue(23)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compiling", [torch.compile, in_place], ids=["wrapped", "in place"])
def test_a_model_that_is_compiled_afterwards_trains_with_the_same_bits(compiling, mode, compiled):
    """Also if it is evaluated between steps."""
    expected = trained(small_model(), mode).weights()

    def around(module):
        return compiling(module, backend=compiled.backend)

    training = trained(small_model(), mode, around)
    assert torch.equal(training.weights(), expected)
    evaluated = Training(model=small_model(), mode=mode, epochs=2)
    evaluated.module = around(evaluated.module)
    for epoch in range(2):
        for batch in evaluated.loader:
            evaluated.step(batch)
        with torch.no_grad():
            evaluated.module.eval()(data().tensors[0])
        evaluated.module.train()
        assert evaluated.release.position == 5 * (epoch + 1)
    assert torch.equal(evaluated.weights(), expected)


@pytest.mark.issue(23)
@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_part_of_a_model_runs_eagerly_too(mode, compiled):
    expected = trained(small_model(), mode).weights()
    model = small_model()
    model[0].compile(backend=compiled.backend)
    with pytest.warns(AntiphaseWarning, match="compiled by torch.compile"):
        training = trained(model, mode)
    assert torch.equal(training.weights(), expected)
    assert not compiled


@pytest.mark.issue(23)
@pytest.mark.parametrize("mode", MODES)
def test_hooks_refuse_a_compiled_model(mode, compiled):
    """They would record compiled functions, whose rounding is not covered."""
    for model in (torch.compile(small_model()), in_place(small_model())):
        with pytest.raises(ValueError, match=r"wrap_model = False: hooks cannot record a model of"):
            make_private(
                PrivacyEngine(mechanism="dp-mf"), None, model, epochs=1, wrap_model=False,
                grad_sample_mode=mode,
            )  # fmt: skip
    training = Training(model=small_model(), mode=mode, wrap_model=False)
    training.module = torch.compile(training.model, backend=compiled.backend)
    with pytest.raises(SettingsError, match=r"called through torch\.compile"):
        training.run(1)
    assert training.release.position == 0
    training.module = training.model
    training.run(1)
    training.module = torch.compile(training.model, backend=compiled.backend)
    with torch.no_grad():
        training.module(data().tensors[0])


@pytest.mark.issue(23)
@pytest.mark.filterwarnings("ignore:Secure RNG")
def test_dp_sgd_of_opacus_takes_a_compiled_model(compiled):
    engine = PrivacyEngine(mechanism="dp-sgd")
    model = torch.compile(small_model(), backend=compiled.backend)
    with pytest.warns(AntiphaseWarning, match="compiled by torch.compile"):
        module, optimizer, loader = make_private(engine, None, model)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    assert not compiled
    assert engine.get_epsilon(1e-5) > 0


@pytest.mark.slow
@pytest.mark.issue(23)
@pytest.mark.parametrize("mode", MODES)
def test_the_default_backend_trains_with_the_same_bits(mode):
    """Before, its compiled code was taken for a change of the model, and every step refused."""
    torch._dynamo.reset()
    expected = trained(small_model(), mode).weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = trained(torch.compile(small_model()), mode)
        after = trained(small_model(), mode, torch.compile)
    assert torch.equal(before.weights(), expected)
    assert torch.equal(after.weights(), expected)


def test_a_model_that_is_not_compiled_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error", AntiphaseWarning)
        Training(key=ap.Key.insecure(2))
