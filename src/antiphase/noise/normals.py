r"""Standard normals from AES in counter mode, by the method of Box and Muller.

A normal is a function of the subkey, the step, the lane (one of several independent sequences of a
step) and its position in the row.

A *chunk* is 1,024 normals from 256 AES blocks, at the counter ``lane·2¹¹² + step·2⁶⁴ + 256·chunk``.
Of each pair of 32-bit words, 40 bits make the radius (so it reaches 7.5 standard deviations) and 24
the angle, an odd multiple of half a grid step: never on an axis, so no normal is exactly zero. The
arithmetic is float32 without reassociation or contraction: the same bits on every machine, however
many threads or chunks are drawn at once.
"""

from __future__ import annotations

import ctypes
import math
import threading
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from randomgen import AESCounter

CHUNK = 1024
HALF = CHUNK // 2
BLOCKS = CHUNK // 4  # AES blocks in a chunk

Row = NDArray[np.float32]


class Normals:
    """The normals of one tensor in one run."""

    def __init__(self, subkey: int) -> None:
        self._subkey = subkey
        self._local = threading.local()  # each thread has its own generator

    def fill(self, step: int, first_chunk: int, out: Row, lane: int = 0) -> None:
        """Fill ``out``, a whole number of chunks, with the chunks from ``first_chunk`` on.

        Guarantee: depends only on the subkey, the step, the lane and the chunk.   [G12]
        """
        block = (lane << 112) + (step << 64) + first_chunk * BLOCKS
        source = getattr(self._local, "source", None)
        if source is None:
            source = self._local.source = _Source(self._subkey)
        function, state, memory = source.at(block)
        draw(function, state, memory, block & 0xFFFFFFFFFFFFFFFF, block >> 64, out)


class _Source:
    """AES in counter mode, at any counter.

    Setting the counter by randomgen's API takes longer than drawing a short row. So it is written
    directly to the generator's memory. If the layout there is not the expected one
    (`_counter_is_known`), each row gets a new generator.
    """

    def __init__(self, subkey: int) -> None:
        self._subkey = subkey
        self._aim(0)

    def _aim(self, block: int) -> None:
        # PRIVACY: key=, not seed=: a seed would pass through a weak hash.   [G12]
        self._generator = AESCounter(key=self._subkey, counter=block)
        c = self._generator.ctypes
        self._function = ctypes.cast(c.next_uint64, ctypes.c_void_p).value
        self._state = c.state_address
        self._memory = (
            _memory(self._generator) if _counter_is_known() else np.zeros(WORDS, np.uint64)
        )

    def at(self, block: int) -> tuple[Any, Any, NDArray[np.uint64]]:
        """Aim at a counter.

        Returns:
            The address of a function that returns the next 64 bits, the address of its argument,
            and the memory in which `aim` sets the counter.
        """
        if not _counter_is_known():
            self._aim(block)
        return self._function, self._state, self._memory


# The generator's state: four counters of two words, key schedule, buffer, and how much was used.
WORDS, OFFSET = 39, 38


def _memory(generator: Any) -> NDArray[np.uint64]:
    words = (ctypes.c_uint64 * WORDS).from_address(generator.ctypes.state_address)
    memory: NDArray[np.uint64] = np.ctypeslib.as_array(words)
    return memory


@cache
def _counter_is_known() -> bool:
    """Whether overwriting the counter gives the same bits as a new generator with that counter."""
    key, block = 0x0F1E2D3C4B5A69788796A5B4C3D2E1F0, 0x0007_0000_0000_0005_8000_0000_0000_0009
    moved, new = AESCounter(key=key, counter=3), AESCounter(key=key, counter=block)
    moved.random_raw(3)
    state = moved.state["s"]
    memory = _memory(moved)
    # PRIVACY: if the counter stayed, noise would repeat: check before writing, and compare.   [G12]
    if not (
        np.array_equal(memory[:8], state["counter"])
        and int(memory[OFFSET]) == state["offset"] == 24
    ):
        return False
    aim(memory, np.uint64(block & 0xFFFFFFFFFFFFFFFF), np.uint64(block >> 64))
    return bool(np.array_equal(moved.random_raw(25), new.random_raw(25)))


def _call(typing: Any, function: Any, state: Any) -> Any:
    """``function(state)`` for two addresses, without Python, so that threads run in parallel."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        call = ir.FunctionType(ir.IntType(64), [pointer]).as_pointer()
        return builder.call(
            builder.inttoptr(arguments[0], call), [builder.inttoptr(arguments[1], pointer)]
        )

    return types.uint64(types.intp, types.intp), code


_next: Any = intrinsic(_call)


# Polynomials of the Cephes library (S. Moshier): the logarithm on [√½, √2], sine and cosine on
# [−π/4, π/4].

_f, _i, _u = np.float32, np.int32, np.uint32
_LOG = tuple(
    _f(c)
    for c in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440e-4)
_SIN = tuple(_f(c) for c in (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
_COS = tuple(_f(c) for c in (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2))
_RADIANS = _f(math.pi / 2 * 2.0**-23)
_ROOT_HALF_BITS = _i(0x3F3504F3)
_UNIT, _LOW, _MIDDLE, _BELOW_ONE = _f(2.0**-24), _f(2.0**-16), _f(2.0**-17), _f(1 - 2.0**-24)
_ONE, _TWO, _ONE_HALF = _f(1.0), _f(2.0), _f(0.5)


@numba.njit(nogil=True, cache=True, boundscheck=False)
def aim(memory: NDArray[np.uint64], low: int | np.uint64, high: int | np.uint64) -> None:
    """Set the counter to ``high·2⁶⁴ + low``, with nothing left in the buffer."""
    for i in range(4):
        memory[2 * i] = np.uint64(low) + np.uint64(i)
        memory[2 * i + 1] = np.uint64(high)
    memory[OFFSET] = np.uint64(64)


@numba.njit(nogil=True, cache=True, boundscheck=False)
def draw(
    function: int, state: int, memory: NDArray[np.uint64], low_word: int, high_word: int, out: Row
) -> None:
    """Fill ``out`` with normals, by the method of Box and Muller.

    In each chunk the first half of the words gives the radii, the second half the angles.

    Args:
        function: the address of a function that returns the next 64 bits.
        state: the address of its argument.
        memory: the memory of the generator, in which the counter is set.
        low_word: the low 64 bits of the counter.
        high_word: its high 64 bits.
        out: a whole number of chunks.
    """
    aim(memory, low_word, high_word)
    bits = np.empty(HALF, np.uint64)
    words = bits.view(np.uint32)
    first, second = words[:HALF], words[HALF:]
    u = np.empty(HALF, np.float32)
    mantissa = np.empty(HALF, np.float32)
    exponent = np.empty(HALF, np.float32)
    radius = np.empty(HALF, np.float32)
    u_bits, mantissa_bits = u.view(np.int32), mantissa.view(np.int32)
    for base in range(0, out.shape[0], CHUNK):
        for i in range(HALF):
            bits[i] = _next(function, state)
        cosines, sines = out[base : base + HALF], out[base + HALF : base + CHUNK]
        # A uniform number in (0, 1) with 40 bits, of which the low ones matter where it is small.
        for i in range(HALF):
            high = _f(_i(first[i] >> _u(8)))
            low = _f(_i(((first[i] & _u(255)) << _u(8)) | (second[i] & _u(255))))
            # PRIVACY: 1 would be a radius of 0, and would release the gradient itself.   [G8]
            u[i] = min((high + (low * _LOW + _MIDDLE)) * _UNIT, _BELOW_ONE)
        # u = mantissa·2^exponent with the mantissa between √½ and √2.
        for i in range(HALF):
            power = _i(_i(u_bits[i] - _ROOT_HALF_BITS) >> _i(23))
            exponent[i] = _f(power)
            mantissa_bits[i] = _i(u_bits[i] - _i(power << _i(23)))
        for i in range(HALF):
            x = mantissa[i] - _ONE
            y = _LOG[0]
            y = y * x + _LOG[1]
            y = y * x + _LOG[2]
            y = y * x + _LOG[3]
            y = y * x + _LOG[4]
            y = y * x + _LOG[5]
            y = y * x + _LOG[6]
            y = y * x + _LOG[7]
            y = y * x + _LOG[8]
            square = x * x
            y = y * x * square + _LN2_LOW * exponent[i] - _ONE_HALF * square
            logarithm = (x + y) + _LN2_HIGH * exponent[i]
            radius[i] = np.sqrt(abs(_TWO * logarithm))
        # Two bits choose the quadrant, 22 the angle within it, an odd number of half steps.
        for i in range(HALF):
            angle = _i(second[i] >> _u(8))
            quadrant = _i(angle >> _i(22))
            x = _f(_i(_i(_i(angle & _i(0x3FFFFF)) << _i(1)) - _i(0x3FFFFF))) * _RADIANS
            square = x * x
            sine = ((_SIN[0] * square + _SIN[1]) * square + _SIN[2]) * square * x + x
            cosine = ((_COS[0] * square + _COS[1]) * square + _COS[2]) * square * square
            cosine = cosine - _ONE_HALF * square + _ONE
            odd = _f(_i(quadrant & _i(1)))
            even = _ONE - odd
            r = radius[i] * (_ONE - _f(_i(quadrant & _i(2))))
            cosines[i] = r * (even * cosine - odd * sine)
            sines[i] = r * (even * sine + odd * cosine)
