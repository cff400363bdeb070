"""What one user may add to a round, whatever is sent."""

import numpy as np
import pytest

from antiphase.federated.clipping import MisshapenError, NotFiniteError, clipped
from tests.federated import setting

SHAPES = {name: setting.MODEL[name].shape for name in setting.TRAINED}


def norm(arrays):
    return np.sqrt(sum(float((a.astype(np.longdouble) ** 2).sum()) for a in arrays.values()))


def test_short_updates_stay_as_they_are():
    given = setting.update(norm=0.99)
    arrays, shortened = clipped(given, SHAPES, 1.0)
    assert not shortened
    assert all((arrays[name] == given[name]).all() for name in given)


@pytest.mark.parametrize("length", [1.0, 1.5, 1e6, 1e30, 1e150, 1e200, 1e300])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 30.0])
def test_long_updates_are_as_long_as_the_clip_norm(length, clip):
    given = setting.update(seed=1, norm=length * clip)
    arrays, shortened = clipped(given, SHAPES, clip)
    assert shortened
    assert clip * (1 - 1e-8) < norm(arrays) <= clip
    assert np.allclose(
        arrays["weight"] * (given["bias"][0] / arrays["bias"][0]), given["weight"]
    )  # same direction


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, np.int64])
def test_types_of_numbers(kind):
    given = {name: np.ones(shape, kind) for name, shape in SHAPES.items()}
    arrays, _ = clipped(given, SHAPES, 1.0)
    assert norm(arrays) <= 1
    assert np.isclose(norm(arrays), 1)


def test_float32_that_overflows_when_squared():
    given = {name: np.full(shape, 1e30, np.float32) for name, shape in SHAPES.items()}
    assert 1 - 1e-8 < norm(clipped(given, SHAPES, 1.0)[0]) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.longdouble("1e4000")])
def test_what_is_not_finite_is_refused(bad):
    given = setting.update()
    given["bias"] = given["bias"].astype(type(bad) if isinstance(bad, np.longdouble) else float)
    given["bias"][1] = bad
    with pytest.raises(NotFiniteError):
        clipped(given, SHAPES, 1.0)


def test_what_has_another_shape_is_refused():
    good = setting.update()
    for bad in [
        None, [1.0], {}, good | {"more": np.zeros(1)}, {"weight": good["weight"]},
        good | {"bias": np.zeros(4)}, good | {"bias": np.zeros((3, 1))}, good | {"bias": "text"},
        good | {"bias": None}, good | {"bias": np.zeros(3, complex)}, good | {"bias": [[1.0], [2.0, 3.0]]},
        good | {"bias": np.array([1.0, None, 2.0])}, good | {"bias": np.zeros(3, bool)},
    ]:  # fmt: skip
        with pytest.raises(MisshapenError):
            clipped(bad, SHAPES, 1.0)


def test_fuzz():
    """Random bits as floats: what is summed is never longer than the clip norm."""
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(500):
        bits = {
            name: rng.integers(0, 2**64, size=shape, dtype=np.uint64)
            for name, shape in SHAPES.items()
        }
        try:
            arrays, _ = clipped({name: b.view(np.float64) for name, b in bits.items()}, SHAPES, 1.0)
        except NotFiniteError:
            refused += 1
        else:
            assert norm(arrays) <= 1
    assert 0 < refused < 100
