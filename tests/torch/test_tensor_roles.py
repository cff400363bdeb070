"""Roles of tensors: which are data of the examples, and which are parameters."""

import torch
from torch import nn

from antiphase.torch.tensor_roles import TensorRoles


def test_a_vector_has_its_examples_in_its_only_dimension():
    """Also where the examples of other inputs are in the second dimension."""
    roles, x = TensorRoles(nn.Linear(2, 1)), torch.zeros(5)
    roles.begin((x, torch.zeros(3, 5)), batch_dim=1)
    assert roles.batch_size == 5
    batch_dim = roles.data.get(x)
    assert batch_dim is not None
    assert batch_dim.dim == 0


def test_numbers_data_and_frozen_parameters_are_no_parameters():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    roles, x = TensorRoles(model), torch.zeros(5, 2)
    roles.begin(x, batch_dim=0)
    assert roles.is_parameter(model.weight)
    assert not any(map(roles.is_parameter, (model.bias, x, 3.0, None, "bias")))
