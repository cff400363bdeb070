"""Calls of torch functions: what their arguments say."""

import torch

from antiphase.torch.function_calls import padding_index


def test_the_row_that_an_embedding_does_not_train():
    """By position or by name; counted from the end if negative."""
    ids, weight = torch.zeros(3).long(), torch.zeros(5, 2)
    assert padding_index(weight, (ids, weight), {}) is None
    assert padding_index(weight, (ids, weight, 2), {}) == 2
    assert padding_index(weight, (ids, weight), {"padding_idx": -1}) == 4
