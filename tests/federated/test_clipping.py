"""No user adds more than the clip norm, whatever is sent."""

import numpy as np
import pytest

from antiphase.federated.clipping import NotFiniteError, ShapeError, clip
from tests.federated import setting

SHAPES = {name: setting.MODEL[name].shape for name in setting.TRAINED}


def norm(arrays):
    return np.sqrt(sum(float((a.astype(np.longdouble) ** 2).sum()) for a in arrays.values()))


def test_short_updates_are_unchanged():
    given = setting.update(norm=0.99)
    arrays, shortened = clip(given, SHAPES, 1.0)
    assert not shortened
    assert all((arrays[name] == given[name]).all() for name in given)


@pytest.mark.parametrize("length", [1.0, 1.5, 1e6, 1e30, 1e150, 1e200, 1e300])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 30.0])
def test_long_updates_are_as_long_as_the_clip_norm(length, clip_norm):
    given = setting.update(seed=1, norm=length * clip_norm)
    arrays, shortened = clip(given, SHAPES, clip_norm)
    assert shortened
    assert clip_norm * (1 - 1e-8) < norm(arrays) <= clip_norm
    assert np.allclose(
        arrays["weight"] * (given["bias"][0] / arrays["bias"][0]), given["weight"]
    )  # same direction


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, np.int64])
def test_all_types_of_numbers_are_clipped(kind):
    given = {name: np.ones(shape, kind) for name, shape in SHAPES.items()}
    arrays, _ = clip(given, SHAPES, 1.0)
    assert norm(arrays) <= 1
    assert np.isclose(norm(arrays), 1)


def test_float32_entries_whose_squares_overflow_are_clipped():
    given = {name: np.full(shape, 1e30, np.float32) for name, shape in SHAPES.items()}
    assert 1 - 1e-8 < norm(clip(given, SHAPES, 1.0)[0]) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.longdouble("1e4000")])
def test_what_is_not_finite_is_refused(bad):
    given = setting.update()
    given["bias"] = given["bias"].astype(type(bad) if isinstance(bad, np.longdouble) else float)
    given["bias"][1] = bad
    with pytest.raises(NotFiniteError):
        clip(given, SHAPES, 1.0)


def test_what_has_another_shape_is_refused():
    good = setting.update()
    for bad in [
        None, [1.0], {}, good | {"more": np.zeros(1)}, {"weight": good["weight"]},
        good | {"bias": np.zeros(4)}, good | {"bias": np.zeros((3, 1))}, good | {"bias": "text"},
        good | {"bias": None}, good | {"bias": np.zeros(3, complex)},
        good | {"bias": [[1.0], [2.0, 3.0]]},
        good | {"bias": np.array([1.0, None, 2.0])}, good | {"bias": np.zeros(3, bool)},
    ]:  # fmt: skip
        with pytest.raises(ShapeError):
            clip(bad, SHAPES, 1.0)


def test_random_bits_are_clipped_or_refused():
    """Random bits as floats: what is summed is within the clip norm, or refused."""
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(500):
        bits = {
            name: rng.integers(0, 2**64, size=shape, dtype=np.uint64)
            for name, shape in SHAPES.items()
        }
        try:
            arrays, _ = clip({name: b.view(np.float64) for name, b in bits.items()}, SHAPES, 1.0)
        except NotFiniteError:
            refused += 1
        else:
            assert norm(arrays) <= 1
    assert 0 < refused < 100
