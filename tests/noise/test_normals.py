import ctypes

import numba
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from randomgen import AESCounter
from scipy import stats

from antiphase.noise import normals
from antiphase.noise.normals import CHUNK, HALF, Normals

KEY = 0x000102030405060708090A0B0C0D0E0F


def drawn(chunks, step=0, first=0, lane=0, key=KEY):
    out = np.empty(chunks * CHUNK, np.float32)
    Normals(key).fill(step, first, out, lane)
    return out


def expected(step, chunk, lane):
    """The same chunk from another AES, in float64, by the definition."""
    aes = Cipher(algorithms.AES(KEY.to_bytes(16, "little")), modes.ECB()).encryptor()
    start = (lane << 112) + (step << 64) + chunk * CHUNK // 4
    blocks = b"".join((start + i).to_bytes(16, "little") for i in range(CHUNK // 4))
    words = np.frombuffer(aes.update(blocks), "<u4").astype(np.uint64)
    return box_muller(words[:HALF], words[HALF:])


def box_muller(first, second):
    """Of words of 32 bits: 40 bits for the radius, 24 for the angle."""
    forty = (first << 8) | (second & 255)
    radius = np.sqrt(-2 * np.log((forty + 0.5) * 2.0**-40))
    angle = 2 * np.pi * ((second >> 8) + 0.5) * 2.0**-24 - np.pi / 4
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


@pytest.mark.parametrize(
    ("step", "chunk", "lane"),
    [(0, 0, 0), (1, 0, 0), (7, 3, 0), (10**6, 10**5, 5), (2**40, 2**30, 19)],
)
def test_normals_are_aes_128_in_counter_mode(step, chunk, lane):
    np.testing.assert_allclose(drawn(1, step, chunk, lane), expected(step, chunk, lane), atol=4e-5)


def from_words(first, second):
    """The normals of a generator that gives these words."""
    bits = np.concatenate([first, second]).astype("<u4").view("<u8").tolist()
    given = iter(bits)
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(lambda _: next(given))
    out = np.empty(CHUNK, np.float32)
    address = ctypes.cast(function, ctypes.c_void_p).value
    normals.draw(address, 0, np.zeros(normals.WORDS, np.uint64), 0, 0, out)
    return out


def test_tails_have_the_bits_they_need():
    """Small uniform numbers and all angles agree with the formula in float64."""
    rng = np.random.default_rng(0)
    scale = 2 ** rng.uniform(0, 32, size=HALF)  # as many small words as large ones
    first = (scale * rng.random(HALF)).astype(np.uint64)
    second = rng.integers(2**32, size=HALF, dtype=np.uint64)
    first[:6], second[:6] = 0, [0, 1, 255, 256, 2**31, 2**32 - 1]
    exact, made = box_muller(first, second), from_words(first, second)
    radius = np.hypot(exact[:HALF], exact[HALF:])
    allowed = np.tile(
        1e-6 + 2e-7 / radius, 2
    )  # of u near 1, where the radius is small, float32 knows less
    assert (np.abs(made - exact) <= allowed).all()
    assert np.hypot(made[0], made[HALF]) == pytest.approx(np.sqrt(82 * np.log(2)), rel=1e-6)  # 7.54


def test_no_normal_is_zero():
    """Neither where u would round to 1 nor on an axis: that would release the gradient itself."""
    second = np.random.default_rng(0).integers(2**32, size=HALF, dtype=np.uint64)
    smallest = from_words(np.full(HALF, 2**32 - 1, np.uint64), second)
    np.testing.assert_allclose(
        np.hypot(smallest[:HALF], smallest[HALF:]), np.sqrt(2 * 2.0**-24), rtol=1e-3
    )
    assert smallest.all()
    axes = (2**21 + 2**22 * np.arange(4))[:, None] + np.arange(-64, 64)
    near = from_words(np.full(HALF, 2**31, np.uint64), axes.ravel().astype(np.uint64) << 8)
    half_step = np.sqrt(2 * np.log(2)) * np.pi * 2.0**-24
    np.testing.assert_allclose(np.abs(near.reshape(2, 4, 128)).min(0).min(1), half_step, rtol=1e-5)
    assert abs(near.sum()) < 1e-4, "as far beside an axis as before it"


def test_order_and_number_of_chunks_change_no_normal():
    whole = {(s, c): drawn(1, s, c) for s in range(3) for c in range(6)}
    normals = Normals(KEY)
    rng = np.random.default_rng(0)
    for _ in range(60):
        step, first = int(rng.integers(3)), int(rng.integers(6))
        count = int(rng.integers(1, 7 - first))
        out = np.empty(count * CHUNK, np.float32)
        normals.fill(step, first, out)
        for i in range(count):
            np.testing.assert_array_equal(out[i * CHUNK : (i + 1) * CHUNK], whole[step, first + i])


@pytest.mark.slow
def test_moments_and_tails_are_normal():
    """16 million: moments, and counts in 60 bins and in the tails, within 5 standard errors."""
    x = drawn(16_000).astype(np.float64)
    n = len(x)
    moments = {
        1: (0, 1),
        2: (1, 2),
        3: (0, 15),
        4: (3, 96),
        6: (15, 10170),
    }  # mean and variance of x^k
    for power, (mean, variance) in moments.items():
        assert abs((x**power).mean() - mean) < 5 * np.sqrt(variance / n), power
    edges = np.concatenate([[-np.inf], np.linspace(-3, 3, 59), [np.inf]])
    p = np.diff(stats.norm.cdf(edges))
    counts, _ = np.histogram(x, edges)
    z = (counts - n * p) / np.sqrt(n * p * (1 - p))
    assert np.abs(z).max() < 5
    assert abs(np.square(z).sum() - len(p)) < 5 * np.sqrt(2 * len(p))
    for tail in (3.5, 4.0, 4.5, 5.0):
        rate = 2 * stats.norm.sf(tail)
        assert abs((np.abs(x) > tail).sum() - n * rate) < 5 * np.sqrt(n * rate), tail
    assert np.isfinite(x).all()
    pairs = x.reshape(-1, 2, HALF)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 5 / np.sqrt(n / 2)
    assert abs((pairs[:, 0] ** 2 * pairs[:, 1] ** 2).mean() - 1) < 5 * np.sqrt(8 / (n / 2))
    assert abs((x[1:] * x[:-1]).mean()) < 5 / np.sqrt(n)


def test_an_unknown_counter_layout_makes_new_generators(monkeypatch):
    """Another release of randomgen may keep its counter elsewhere: same bits, only slower."""
    places = [(0, 0), (0, 3), (5, 2), (5, 0), (2**40, 7)]

    def rows():
        source, made = Normals(subkey=99), []
        for step, chunk in places:
            out = np.empty(2 * CHUNK, np.float32)
            source.fill(step, chunk, out, lane=step % 3)
            made.append(out)
        return np.array(made)

    known = rows()
    assert normals._counter_is_known()
    monkeypatch.setattr(normals, "_counter_is_known", lambda: False)
    assert np.array_equal(rows(), known)
    assert len(np.unique(known)) > 0.99 * known.size


class Elsewhere(normals.AESCounter):
    """A generator that has used a different part of its buffer than expected."""

    @property
    def state(self):
        state = super().state
        state["s"]["offset"] = 16
        return state


def test_another_counter_layout_is_noticed_before_writing(monkeypatch):
    look, real = normals._counter_is_known.__wrapped__, normals._memory
    assert look()
    monkeypatch.setattr(normals, "_memory", lambda generator: real(generator).copy())
    assert not look(), "what was written moved no counter"
    for word in (0, 7, normals.OFFSET):
        seen = []

        def other(generator, word=word, seen=seen):
            memory = real(generator).copy()
            memory[word] += np.uint64(1)
            seen += [memory, memory.copy()]
            return memory

        monkeypatch.setattr(normals, "_memory", other)
        assert not look(), word
        assert np.array_equal(*seen), "not written to"

    def sixteen(generator):
        memory = real(generator).copy()
        memory[normals.OFFSET] = 16
        return memory

    monkeypatch.setattr(normals, "_memory", sixteen)
    monkeypatch.setattr(normals, "AESCounter", Elsewhere)
    monkeypatch.setattr(normals, "aim", None)
    assert not look()


def test_compiled_code_calls_the_generator_by_its_address():
    """Compiled anew, all 64 bits of a word are those of randomgen."""
    moved, new = AESCounter(key=KEY), AESCounter(key=KEY)
    function = ctypes.cast(moved.ctypes.next_uint64, ctypes.c_void_p).value
    word = numba.njit(lambda function, state: normals._next(function, state))
    words = [word(function, moved.ctypes.state_address) for _ in range(8)]
    assert words == new.random_raw(8).tolist()
    assert max(words) >= 2**63
