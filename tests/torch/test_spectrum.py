"""The estimated spectrum agrees with dense Hessians of small models."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev

from antiphase.theory.spectrum import Spectrum
from antiphase.torch.spectrum import spectrum


def setting(hidden=5, classes=3, examples=40, dtype=torch.float64):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, classes)).to(dtype)
    inputs = torch.randn(examples, 4, dtype=dtype)
    return net, nn.CrossEntropyLoss(), inputs, torch.randint(classes, (examples,))


def flat(net):
    named = {name: p.detach() for name, p in net.named_parameters()}
    sizes = [p.numel() for p in named.values()]

    def rebuilt(vector):
        parts = torch.split(vector, sizes)
        return {
            name: part.reshape(p.shape)
            for (name, p), part in zip(named.items(), parts, strict=True)
        }

    return torch.cat([p.reshape(-1) for p in named.values()]), rebuilt


def dense(net, loss, inputs, targets, matrix="hessian"):
    """The dense matrix, by another method."""
    vector, rebuilt = flat(net)

    def outputs(v):
        return functional_call(net, rebuilt(v), (inputs,))

    if matrix == "hessian":
        return hessian(lambda v: loss(outputs(v), targets))(vector).numpy()
    J = jacrev(lambda v: outputs(v).reshape(-1))(vector)
    ends = outputs(vector)
    H = hessian(lambda o: loss(o.reshape(ends.shape), targets))(ends.reshape(-1))
    return (J.T @ H @ J).detach().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_the_largest_eigenvalue(matrix, dtype, near):
    parts = setting(dtype=dtype)
    exact = np.linalg.eigvalsh(dense(*parts, matrix).astype(np.float64))
    found = spectrum(*parts, count=30, probes=2, seed=1, matrix=matrix)
    assert found.top == pytest.approx(exact[-1], rel=near)
    assert found.dimension == pytest.approx(len(exact))
    if matrix == "hessian":
        assert found.least == pytest.approx(exact[0], abs=1e-4 * exact[-1])
        assert exact[0] < -1e-3
    else:
        assert found.least > -1e-6 * exact[-1]


@pytest.mark.slow
def test_spectral_moments_within_sampling_error():
    """``Σ weight·value^p`` is the trace of ``G^p``, within four standard errors."""
    parts = setting()
    exact = np.linalg.eigvalsh(dense(*parts, "gauss-newton"))
    trials = [
        spectrum(*parts, count=12, probes=1, seed=seed, matrix="gauss-newton")
        for seed in range(200)
    ]
    for power in (1, 2, 3):
        moments = [float(t.weights @ t.values**power) for t in trials]
        error = np.std(moments, ddof=1) / np.sqrt(len(moments))
        assert abs(np.mean(moments) - np.sum(exact**power)) <= 4 * error


def test_enough_steps_find_all_eigenvalues():
    """Lanczos finds every eigenvalue and stops at an invariant subspace."""
    net = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    inputs = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    found = spectrum(
        net,
        nn.MSELoss(),
        inputs,
        torch.zeros(3, 1, dtype=torch.float64),
        count=50,
        probes=1,
        seed=0,
    )
    np.testing.assert_allclose(np.sort(found.values), np.array([1.0, 4.0, 9.0]) * 2 / 3, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [0.3, 1e9])
def test_clipped_gradients_see_less_curvature(clip_norm):
    """Each example is weighted by its clip factor; a large clip norm changes nothing."""
    net, loss, inputs, targets = setting()
    vector, rebuilt = flat(net)
    whole = np.zeros((len(vector), len(vector)))
    for x, t in zip(inputs, targets, strict=True):

        def alone(v, x=x, t=t):
            return loss(functional_call(net, rebuilt(v), (x[None],)), t[None])

        norm = torch.func.grad(alone)(vector).norm().item()
        whole += min(1.0, clip_norm / norm) * hessian(alone)(vector).numpy() / len(inputs)
    found = spectrum(net, loss, inputs, targets, count=30, probes=1, clip_norm=clip_norm)
    assert found.top == pytest.approx(np.linalg.eigvalsh(whole)[-1], rel=1e-6)
    plain = spectrum(net, loss, inputs, targets, count=30, probes=1)
    assert (found.top < 0.9 * plain.top) is (clip_norm < 1)


def test_the_result_depends_on_the_seed_and_the_model_is_not_changed():
    net, loss, inputs, targets = setting()
    before = [p.clone() for p in net.parameters()]
    state = torch.random.get_rng_state()
    first, again, other = (
        spectrum(net, loss, inputs, targets, count=6, probes=2, seed=s) for s in (1, 1, 2)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(
        torch.equal(p, q) and p.grad is None for p, q in zip(net.parameters(), before, strict=True)
    )
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)


def test_frozen_parameters_have_no_curvature():
    net, loss, inputs, targets = setting()
    whole = dense(net, loss, inputs, targets)
    for p in net[0].parameters():
        p.requires_grad_(False)
    count = sum(p.numel() for p in net[2].parameters())
    found = spectrum(net, loss, inputs, targets, count=30, probes=1)
    assert found.dimension == pytest.approx(count)
    assert found.top == pytest.approx(np.linalg.eigvalsh(whole[-count:, -count:])[-1], rel=1e-6)


def test_bad_input_is_named():
    net, loss, inputs, targets = setting()
    with pytest.raises(ValueError, match="matrix = "):
        spectrum(net, loss, inputs, targets, matrix="fisher")
    with pytest.raises(ValueError, match="clip_norm = "):
        spectrum(net, loss, inputs, targets, clip_norm=0.0)
    with pytest.raises(ValueError, match="not finite"):
        spectrum(net, loss, inputs * np.inf, targets)
    with pytest.raises(ValueError, match="at least 0, and one above 0"):  # a linear loss is flat
        spectrum(net[2], lambda o, t: o.sum(), torch.ones(2, 5, dtype=torch.float64), targets[:2])
    for p in net.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameters"):
        spectrum(net, loss, inputs, targets)


def test_a_condensed_spectrum_keeps_what_counts():
    """Mass times curvature, and the largest one."""
    rng = np.random.default_rng(0)
    whole = Spectrum(np.append(np.exp(rng.normal(size=500)), 0.0), rng.random(501))
    few = whole.condensed(16)
    assert len(few.values) <= 16
    assert few.top == whole.top
    assert few.weights @ few.values == pytest.approx(whole.weights @ whole.values)
    assert whole.condensed(600).dimension == pytest.approx(whole.weights[whole.values > 0].sum())


def test_a_spectrum_in_a_file(tmp_path):
    found = Spectrum([1.0, 2.0], [3.0, 4.0], -0.5)
    found.save(tmp_path / "spectrum.json")
    again = Spectrum.load(tmp_path / "spectrum.json")
    assert again.to_dict() == found.to_dict()
    (tmp_path / "list.json").write_text("[1, 2, 3]")
    assert Spectrum.load(tmp_path / "list.json").dimension == 3
    for text in (
        "nonsense",
        "3",
        "{}",
        '{"values": [-1]}',
        '{"values": [1], "weights": [1, 2]}',
        '{"values": [1], "a": 1}',
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match=r"bad\.json"):
            Spectrum.load(tmp_path / "bad.json")
