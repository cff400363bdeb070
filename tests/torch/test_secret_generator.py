"""Generators of torch with a state from the key."""

import numpy as np
import torch

from antiphase import Key
from antiphase.torch.secret_generator import torch_generator


def test_the_whole_state_of_a_torch_generator_comes_from_the_key():
    """NumPy's Mersenne Twister with these words gives the same numbers."""
    made = torch_generator(Key.insecure(1), "noise")
    words = made.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": words.astype(np.uint32), "pos": 624},
    }
    expected = (twister.random_raw(2000) & 0xFFFFFF) / 2**24
    assert np.array_equal(torch.rand(2000, generator=made).numpy(), expected.astype(np.float32))
    chained = (
        1812433253 * (words[:-1] ^ words[:-1] >> 30) + np.arange(1, 624, dtype=np.uint64)
    ) % 2**32
    assert not (words[1:] == chained).any(), (
        "as after manual_seed, which makes all words of 32 bits"
    )
    assert len(np.unique(words)) > 600
    first = [torch.rand(3, generator=torch_generator(Key.generate(), "noise")) for _ in range(2)]
    assert not torch.equal(*first)
    assert not torch.equal(
        first[0], torch.rand(3, generator=torch_generator(Key.insecure(1), "samples"))
    )
