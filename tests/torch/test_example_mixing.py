"""Models whose output for one example depends on another are refused."""

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase.torch.example_mixing import MixingError, refuse_mixing
from tests.torch.setting import Training, data, small_model

MODES = ["hooks", "functorch", "ghost"]


def test_layers_that_mix_examples_are_refused():
    norm = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    with pytest.raises(Exception, match="BatchNorm"):
        Training(model=norm)
    Training(model=nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Linear(6, 2))).run(2)

    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    with pytest.raises(MixingError, match="mixes examples"):
        Training(model=nn.Sequential(nn.Linear(5, 6), Centred(), nn.Linear(6, 2)))
    embedding = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2))
    tokens = TensorDataset(torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1]))
    assert refuse_mixing(embedding, DataLoader(tokens))
    with pytest.raises(MixingError):
        refuse_mixing(
            nn.Sequential(nn.Embedding(4, 3), Centred(), nn.Flatten(), nn.Linear(6, 2)),
            DataLoader(tokens),
        )
    assert not refuse_mixing(nn.Bilinear(2, 2, 1), DataLoader(tokens)), (
        "a model of two inputs cannot be probed"
    )


@pytest.mark.parametrize("mode", MODES)
def test_models_that_mix_examples_are_refused_in_every_mode(mode):
    """The check does not depend on how per-example gradients are computed."""

    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    with pytest.raises(MixingError, match="mixes examples"):
        Training(model=nn.Sequential(nn.Linear(5, 6), Centred(), nn.Linear(6, 2)), mode=mode)


def test_the_mixing_check_reads_only_shapes_and_types_and_changes_nothing():
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.seen = nn.Parameter(torch.ones(1)), []

        def forward(self, x):
            self.seen.append(x.detach().clone())
            return x.float() * self.weight

    for examples in (
        (torch.tensor([[1, 3, 2]]), torch.tensor([[2, 2, 2]])),
        (torch.tensor([5]), torch.tensor([7])),
        (torch.tensor([[True, True]]), torch.tensor([[False, True]])),
        (torch.randn(1, 4), torch.randn(1, 4)),
    ):
        models = Looking(), Looking()
        for model, example in zip(models, examples, strict=True):
            assert refuse_mixing(model, DataLoader(TensorDataset(example)))
        one, other = (torch.cat(model.seen) for model in models)
        assert torch.equal(one, other)
        assert len(one.unique()) > 1
    module = GradSampleModule(small_model())
    assert refuse_mixing(module, DataLoader(data()))
    assert module.hooks_enabled
    assert not any(getattr(part, "activations", None) for part in module.modules())
    assert all(p.grad_sample is None for p in module.parameters())
