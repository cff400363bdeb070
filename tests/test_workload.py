import numpy as np
import pytest
import torch

from antiphase import Workload

T = 12
RATES = np.array([0.1, 0.4, 1.0, 0.9, 0.7, 0.7, 0.5, 0.3, 0.2, 0.1, 0.0, 0.0])
OPTIMIZERS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.8, "dampening": 0.3},
    "decayed": {"weight_decay": 0.2},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "all": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
    "all but nesterov": {"momentum": 0.7, "dampening": 0.5, "weight_decay": 0.1},
}
SGD = pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


@pytest.fixture
def gradients():
    return np.random.default_rng(0).normal(size=(T, 3))


def torch_iterates(gradients, rates, options, delay=0, curvature=0.0):
    """What torch.optim.SGD itself does with these gradients, from x_0 = 0, as x_0 − x_t."""
    x = torch.nn.Parameter(torch.zeros(gradients.shape[1], dtype=torch.float64))
    optimizer = torch.optim.SGD([x], lr=1.0, **options)
    pending = [torch.zeros_like(x)] * delay
    out = []
    for g, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = float(rate)
        pending.append(torch.tensor(g) + curvature * x.detach().clone())
        x.grad = pending.pop(0).clone()
        optimizer.step()
        out.append(-x.detach().numpy().copy())
    return np.array(out)


@SGD
@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.parametrize("curvature", [0.0, 0.3])
def test_the_workload_is_what_torch_does(options, delay, curvature, gradients):
    workload = Workload.sgd(T, learning_rates=RATES, delay=delay, **options).with_curvature(
        curvature
    )
    expected = torch_iterates(gradients, RATES, options, delay, curvature)
    np.testing.assert_allclose(workload.apply(gradients), expected, atol=1e-13)


@SGD
@pytest.mark.parametrize("average", ["none", "ema", "tail"])
@pytest.mark.parametrize("delay", [0, 2])
def test_solve_undoes_apply_on_all_steps_that_move_the_model(options, average, delay, gradients):
    workload = Workload.sgd(T, learning_rates=RATES, delay=delay, **options).with_curvature(0.1)
    workload = {
        "none": workload,
        "ema": workload.with_ema(0.9),
        "tail": workload.with_tail_average(4),
    }[average]
    np.testing.assert_allclose(workload.dense() @ gradients, workload.apply(gradients), atol=1e-12)
    solved = workload.solve(workload.apply(gradients))
    np.testing.assert_allclose(solved[~workload.idle], gradients[~workload.idle], atol=1e-10)
    assert not solved[workload.idle].any()
    assert not np.triu(workload.dense(), 1).any()


def test_averages_are_those_of_the_iterates(gradients):
    plain = Workload.sgd(T, momentum=0.9)
    x = plain.apply(gradients)
    ema, expected = np.zeros(3), []
    for row in x:
        ema = 0.9 * ema + 0.1 * row
        expected.append(ema)
    np.testing.assert_allclose(plain.with_ema(0.9).apply(gradients), expected, atol=1e-13)
    tail = [
        x[t] if t < 4 else x[4 : t + 1].mean(axis=0) for t in range(T)
    ]  # start = 5, counted from 1
    np.testing.assert_allclose(plain.with_tail_average(5).apply(gradients), tail, atol=1e-13)


def test_a_matrix_is_as_good_as_the_optimizer_it_came_from(gradients):
    named = Workload.sgd(T, momentum=0.5, delay=3, learning_rates=RATES)
    given = Workload.from_matrix(named.dense())
    assert (given.idle == named.idle).all()
    for refine in (
        lambda w: w,
        lambda w: w.with_curvature(0.2),
        lambda w: w.with_curvature(0.2).with_ema(0.5),
    ):
        u = refine(named).apply(gradients)
        np.testing.assert_allclose(refine(given).apply(gradients), u, atol=1e-12)
        live = ~given.idle
        np.testing.assert_allclose(refine(given).solve(u)[live], gradients[live], atol=1e-9)


def test_the_bands_are_as_narrow_as_they_can_be():
    widths = {
        1: Workload.sgd(T),
        2: Workload.sgd(T, momentum=0.9, learning_rates=np.linspace(1, 0, T), weight_decay=0.1),
        3: Workload.sgd(T, momentum=0.9).with_ema(0.5),
    }
    for width, workload in widths.items():
        assert workload.recurrence[0].shape == (T, width + 1)
    assert Workload.sgd(1, momentum=0.9).dense() == 1


def test_values_are_equal_by_content():
    assert Workload.sgd(3) == Workload.sgd(3, learning_rates=[1, 1, 1])
    assert Workload.sgd(3) != Workload.sgd(3, momentum=0.1)
    assert len({Workload.sgd(3), Workload.sgd(3), Workload.sgd(4)}) == 2
    with pytest.raises(ValueError, match="read-only"):
        Workload.sgd(3).learning_rates[0] = 2.0
    assert Workload.restore(Workload.sgd(3).spec()) == Workload.sgd(3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Workload.sgd(0), "steps = 0"),
        (lambda: Workload.sgd(-3), "steps = -3"),
        (lambda: Workload.sgd(2.5), "steps = 2.5"),
        (lambda: Workload.sgd(True), "steps = True"),
        (lambda: Workload.sgd("9"), "steps = '9'"),
        (lambda: Workload.sgd(3, learning_rates=-1.0), r"learning_rates\[0\] = -1"),
        (lambda: Workload.sgd(3, learning_rates=[1, -1, 1]), r"learning_rates\[1\] = -1"),
        (lambda: Workload.sgd(3, learning_rates=[1, np.nan, 1]), r"learning_rates\[1\] = nan"),
        (
            lambda: Workload.sgd(3, learning_rates=[1, 1]),
            "learning_rates has 2 entries for 3 steps",
        ),
        (lambda: Workload.sgd(3, learning_rates=0.0), "learning_rates are all 0"),
        (lambda: Workload.sgd(3, learning_rates="fast"), "learning_rates = 'fast'"),
        (lambda: Workload.sgd(3, momentum=1.0), "momentum = 1.0"),
        (lambda: Workload.sgd(3, momentum=float("nan")), "momentum = nan"),
        (lambda: Workload.sgd(3, dampening=1.0, momentum=0.9), "dampening = 1.0"),
        (lambda: Workload.sgd(3, nesterov=True), "nesterov = True needs momentum"),
        (lambda: Workload.sgd(3, nesterov=1, momentum=0.9), "nesterov = 1"),
        (lambda: Workload.sgd(3, weight_decay=-0.1), "weight_decay = -0.1"),
        (lambda: Workload.sgd(3, delay=3), "delay = 3"),
        (lambda: Workload.sgd(3, delay=-1), "delay = -1"),
        (
            lambda: Workload.sgd(3, learning_rates=[0, 1, 1], momentum=0.9),
            r"learning_rates\[0\] = 0 before",
        ),
        (lambda: Workload.sgd(3).with_ema(1.0), "decay = 1.0"),
        (lambda: Workload.sgd(3).with_tail_average(4), "start = 4"),
        (lambda: Workload.sgd(3).with_ema(0.5).with_tail_average(2), "choose one"),
        (lambda: Workload.sgd(3).with_curvature(-1.0), "curvature = -1.0"),
        (lambda: Workload.sgd(3).apply(np.ones(4)), r"gradients has shape \(4,\)"),
        (
            lambda: Workload.from_matrix(np.triu(np.ones((3, 3)))),
            r"matrix\[0, 1\] = 1 is above the diagonal",
        ),
        (lambda: Workload.from_matrix(np.ones((2, 3))), "matrix has shape"),
        (lambda: Workload.from_matrix(np.zeros((3, 3))), "matrix is 0"),
        (lambda: Workload.from_matrix([[0.0, 0, 0], [1, 0, 0], [1, 1, 1]]), "singular"),
        (lambda: Workload.from_matrix([[0.0, 0, 0], [1, 1, 0], [1, 1, 0]]), "singular"),
        (lambda: Workload.from_matrix([[np.inf]]), r"matrix\[0, 0\] = inf"),
        (lambda: Workload.from_matrix([1.0, 2.0]), "matrix has shape"),
        (lambda: Workload.from_matrix([[1j]]), "matrix"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
