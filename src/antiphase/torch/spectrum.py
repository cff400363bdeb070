r"""The curvature of a loss, from a *public* batch: stochastic Lanczos quadrature over Hessian–vector products.

PUBLIC DATA ONLY. What comes out depends on the examples, without clipping or noise, and so does whatever is chosen by
it: hand over examples that need no protection (another data set of the same kind, synthetic ones), never the records
to be trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from antiphase._util import checks as check
from antiphase.theory.spectrum import Spectrum

Tensor = torch.Tensor
Loss = Callable[[Tensor, Tensor], Tensor]
Product = Callable[[Tensor], Tensor]

CHUNK = 64  # examples whose gradients are held at once
STALL = 1e-6  # of the largest entry; a new direction that is shorter is rounding


def spectrum(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    *,
    count: int = 32,
    probes: int = 8,
    seed: int = 0,
    matrix: str = "hessian",
    clip_norm: float | None = None,
) -> Spectrum:
    r"""The spectrum of ``loss(model(inputs), targets)`` at the model's weights, as at most ``count·probes`` curvatures.

    Give PUBLIC examples only: nothing here is private. ``loss`` is a mean over the batch, as `nn.CrossEntropyLoss()`;
    ``matrix`` is ``"hessian"``, or ``"gauss-newton"``, which has no negative eigenvalue where the loss is convex in the
    outputs. With ``clip_norm`` every example counts by ``min(1, clip_norm/‖its gradient‖)``: what training with
    clipped gradients sees, often far less than the loss itself has.

    From each of ``probes`` random directions ``count`` steps of Lanczos, reorthogonalised in full and in float64 (the
    products have the model's own precision), give the nodes and weights of a Gauss quadrature. Negative eigenvalues
    count as flat; the lowest met is in ``least``.

    Guarantee: weights add up to the number of parameters; ``Σ weight·eigenvalue^p`` is an unbiased estimate of the
    trace of the matrix to the p-th, for p < 2·count, as long as no eigenvalue is negative; the largest one is never
    above the true one but for rounding. The model, its gradients and the global generators are left as they were.
    """
    count, probes = check.whole_number("count", count), check.whole_number("probes", probes)
    seed = check.whole_number("seed", seed, minimum=0)
    check.choice("matrix", matrix, ("hessian", "gauss-newton"))
    parameters = {
        name: p.detach().clone().requires_grad_()
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    if not parameters:
        raise ValueError("the model has no parameters that are trained, so there is no curvature")
    weights = None if clip_norm is None else _clip_factors(model, loss, inputs, targets, clip_norm)
    make = _hessian if matrix == "hessian" else _gauss_newton
    product = make(model, _weighted(loss, weights), inputs, targets, parameters)
    dimension = sum(p.numel() for p in parameters.values())
    like = next(iter(parameters.values()))
    generator = torch.Generator().manual_seed(seed)
    nodes, masses = [], []
    for _ in range(probes):
        start = torch.randn(dimension, dtype=torch.float64, generator=generator)
        values, mass = _lanczos(
            lambda v: product(v.to(like)).detach().cpu().double(), start, min(count, dimension)
        )
        nodes.append(values)
        masses.append(mass * dimension / probes)
    found, mass = np.concatenate(nodes), np.concatenate(masses)
    if not np.isfinite(found).all():
        raise ValueError(
            "the curvature is not finite at these weights: nothing can be said about it"
        )
    return Spectrum(np.maximum(found, 0.0), mass, min(float(found.min()), 0.0))


def _lanczos(product: Product, start: Tensor, count: int) -> tuple[Any, Any]:
    """Nodes and weights of the quadrature for ``startᵀ f(H) start``, the weights adding up to 1."""
    basis = torch.empty(count, len(start), dtype=torch.float64)
    basis[0] = start / start.norm()
    diagonal, beside = np.zeros(count), np.zeros(count)
    used = count
    for k in range(count):
        new = product(basis[k])
        diagonal[k] = float(new @ basis[k])
        for _ in range(2):  # once is not enough in floating point, twice is
            new = new - basis[: k + 1].T @ (basis[: k + 1] @ new)
        beside[k] = float(new.norm())
        if k + 1 < count:
            if not beside[k] > STALL * max(np.abs(diagonal).max(), beside[:k].max(initial=0.0)):
                used = k + 1  # the space is closed: these are eigenvalues
                break
            basis[k + 1] = new / beside[k]
    d, e = diagonal[:used], beside[: used - 1]
    if not (np.isfinite(d).all() and np.isfinite(e).all()):
        return np.array([math.nan]), np.ones(1)
    values, vectors = np.linalg.eigh(np.diag(d) + np.diag(e, 1) + np.diag(e, -1))
    return values, vectors[0] ** 2


# ---- products with the matrix ------------------------------------------------------------------------------


def _hessian(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, parameters: dict[str, Tensor]
) -> Product:
    """``v ↦ Hv`` by differentiating the gradient once more; its graph is made once."""
    places = list(parameters.values())
    value = loss(functional_call(model, parameters, (inputs,)), targets)
    gradient = _flat(_gradients(value, places, create_graph=True), places)
    if not gradient.requires_grad:  # linear: no curvature at all
        return torch.zeros_like
    return lambda v: _flat(_gradients(gradient @ v, places, retain_graph=True), places)


def _gauss_newton(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, parameters: dict[str, Tensor]
) -> Product:
    """``v ↦ JᵀH_loss J v`` with ``J`` the derivative of the outputs; ``Jv`` by differentiating ``Jᵀu`` by ``u``."""
    places = list(parameters.values())
    outputs = functional_call(model, parameters, (inputs,))
    u = torch.zeros_like(outputs, requires_grad=True)
    back = _flat(_gradients(outputs, places, u, create_graph=True), places)
    ends = outputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(ends, targets), ends, create_graph=True)
    if not slope.requires_grad:
        return torch.zeros_like

    def product(v: Tensor) -> Tensor:
        (forward,) = torch.autograd.grad(back @ v, u, retain_graph=True)
        (curved,) = torch.autograd.grad(slope, ends, forward, retain_graph=True)
        return _flat(_gradients(outputs, places, curved, retain_graph=True), places)

    return product


def _gradients(value: Tensor, places: list[Tensor], seed: Tensor | None = None, **how: bool) -> Any:
    return torch.autograd.grad(value, places, seed, allow_unused=True, **how)


def _flat(parts: Any, places: list[Tensor]) -> Tensor:
    """One vector; what does not depend on a parameter is 0."""
    return torch.cat(
        [
            torch.zeros(p.numel()).to(p) if g is None else g.reshape(-1)
            for g, p in zip(parts, places, strict=True)
        ]
    )


# ---- clipping ----------------------------------------------------------------------------------------------


def _weighted(loss: Loss, weights: Tensor | None) -> Loss:
    if weights is None:
        return loss
    return lambda outputs, targets: (weights * _each(loss, outputs, targets)).mean()


def _each(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every example by itself."""
    alone: Tensor = vmap(lambda o, t: loss(o[None], t[None]))(outputs, targets)
    return alone


def _clip_factors(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, clip_norm: float
) -> Tensor:
    """``min(1, clip_norm/‖gradient‖)`` of each example."""
    limit = check.positive_number("clip_norm", clip_norm)
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def alone(weights: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (x[None],)), t[None])

    def squared(x: Tensor, t: Tensor) -> Tensor:
        parts = grad(alone)(parameters, x, t)
        return sum((g.square().sum() for g in parts.values()), torch.zeros(()).to(x))

    norms = vmap(squared, chunk_size=CHUNK)(inputs, targets).sqrt()
    factors: Tensor = (limit / norms.clamp_min(limit)).detach()
    return factors
