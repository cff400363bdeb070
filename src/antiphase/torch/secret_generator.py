"""A torch generator whose whole state is drawn from a secret key."""

from __future__ import annotations

import numpy as np
import torch
from randomgen import AESCounter

from antiphase.noise.key import Key

FIRST_BYTE, WORDS = 24, 624  # in torch's state: after seed, position and flags; 32 bits of 64 each


def torch_generator(key: Key, *purpose: str) -> torch.Generator:
    """A Mersenne Twister of torch with a secret state.

    Args:
        key: the secret.
        purpose: names what the generator is for; other purposes have other states.
    """
    generator = torch.Generator()
    state = generator.get_state()
    # PRIVACY: torch's seeds are cut to 32 bits, few enough to try; the state has 19,968.   [G11]
    words = state.numpy()[FIRST_BYTE : FIRST_BYTE + 8 * WORDS].view(np.uint64)
    source = AESCounter(key=key.subkey("torch generator", *purpose))
    words[:] = source.random_raw(WORDS) >> np.uint64(32)
    generator.set_state(state)
    return generator
