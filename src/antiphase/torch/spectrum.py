"""Curvature of a loss on a *public* batch, by stochastic Lanczos quadrature.

PUBLIC DATA ONLY. The result depends on the examples, without clipping or noise, and so does
whatever is chosen by it: use examples that need no protection (another data set of the same kind,
synthetic ones), never the records to be trained on.
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

MAX_EXAMPLES = 64  # whose gradients are held at once
MIN_DIRECTION = 1e-6  # of the largest entry; a new direction that is shorter is rounding error


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
    """The spectrum of ``loss(model(inputs), targets)`` at the model's weights.

    From each random direction Lanczos steps, reorthogonalised in full and in float64 (the products
    have the model's own precision), give the nodes and weights of a Gauss quadrature. Negative
    eigenvalues count as flat; the lowest one is in ``least``.

    Guarantee: weights add up to the number of parameters; ``Σ weight·eigenvalue^p`` is an unbiased
    estimate of the trace of the matrix to the p-th, for p < 2·count, as long as no eigenvalue is
    negative; the largest one is never above the true one but for rounding. The model, its gradients
    and the global generators are left as they were.

    Args:
        model: the model.
        loss: a mean over the batch, as `nn.CrossEntropyLoss()`.
        inputs: of PUBLIC examples.
        targets: of the same examples.
        count: steps of Lanczos from each direction.
        probes: random directions.
        seed: of the directions.
        matrix: "hessian", or "gauss-newton", which has no negative eigenvalue if the loss is convex
            in the outputs.
        clip_norm: weights each example by ``min(1, clip_norm/‖its gradient‖)``, which is what
            training with clipped gradients sees; often far less than the curvature of the loss.

    Returns:
        At most ``count·probes`` curvatures.

    Raises:
        ValueError: if no parameter is trained, or the curvature is not finite.

    References:
        Ghorbani, Krishnan, Xiao (2019), "An investigation into neural net optimization via Hessian
        eigenvalue density".
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
    if clip_norm is not None:
        loss = _weighted(loss, _clip_factors(model, loss, inputs, targets, clip_norm))
    matrix_product = _hessian if matrix == "hessian" else _gauss_newton
    product = matrix_product(model, loss, inputs, targets, parameters)
    dimension = sum(p.numel() for p in parameters.values())
    like = next(iter(parameters.values()))
    generator = torch.Generator().manual_seed(seed)
    values, weights = [], []
    for _ in range(probes):
        start = torch.randn(dimension, dtype=torch.float64, generator=generator)
        nodes, masses = _lanczos(
            lambda v: product(v.to(like)).detach().cpu().double(), start, min(count, dimension)
        )
        values.append(nodes)
        weights.append(masses * dimension / probes)
    eigenvalues = np.concatenate(values)
    if not np.isfinite(eigenvalues).all():
        raise ValueError(
            "the curvature is not finite at these weights: nothing can be said about it"
        )
    lowest = min(float(eigenvalues.min()), 0.0)
    return Spectrum(np.maximum(eigenvalues, 0.0), np.concatenate(weights), lowest)


def _lanczos(product: Product, start: Tensor, count: int) -> tuple[Any, Any]:
    """Nodes and weights of the quadrature for ``startᵀ f(H) start``; the weights add up to 1."""
    basis = torch.empty(count, len(start), dtype=torch.float64)
    basis[0] = start / start.norm()
    diagonal, off_diagonal = np.zeros(count), np.zeros(count)
    used = count
    for k in range(count):
        new = product(basis[k])
        diagonal[k] = float(new @ basis[k])
        for _ in range(2):  # once is not enough in floating point, twice is
            new = new - basis[: k + 1].T @ (basis[: k + 1] @ new)
        off_diagonal[k] = float(new.norm())
        if k + 1 < count:
            largest = max(np.abs(diagonal).max(), off_diagonal[:k].max(initial=0.0))
            if not off_diagonal[k] > MIN_DIRECTION * largest:
                used = k + 1  # an invariant subspace: these are eigenvalues
                break
            basis[k + 1] = new / off_diagonal[k]
    d, e = diagonal[:used], off_diagonal[: used - 1]
    if not (np.isfinite(d).all() and np.isfinite(e).all()):
        return np.array([math.nan]), np.ones(1)
    values, vectors = np.linalg.eigh(np.diag(d) + np.diag(e, 1) + np.diag(e, -1))
    return values, vectors[0] ** 2


def _hessian(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, parameters: dict[str, Tensor]
) -> Product:
    """``v ↦ Hv``, by differentiating the gradient once more; its graph is made once."""
    places = list(parameters.values())
    value = loss(functional_call(model, parameters, (inputs,)), targets)
    gradient = _flat(_gradients(value, places, create_graph=True), places)
    if not gradient.requires_grad:  # linear: no curvature at all
        return torch.zeros_like
    return lambda v: _flat(_gradients(gradient @ v, places, retain_graph=True), places)


def _gauss_newton(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, parameters: dict[str, Tensor]
) -> Product:
    """``v ↦ JᵀH_loss J v`` with J the Jacobian of the outputs; Jv by differentiating Jᵀu by u."""
    places = list(parameters.values())
    outputs = functional_call(model, parameters, (inputs,))
    u = torch.zeros_like(outputs, requires_grad=True)
    transposed = _flat(_gradients(outputs, places, u, create_graph=True), places)
    detached = outputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(detached, targets), detached, create_graph=True)
    if not slope.requires_grad:
        return torch.zeros_like

    def product(v: Tensor) -> Tensor:
        (forward,) = torch.autograd.grad(transposed @ v, u, retain_graph=True)
        (curved,) = torch.autograd.grad(slope, detached, forward, retain_graph=True)
        return _flat(_gradients(outputs, places, curved, retain_graph=True), places)

    return product


def _gradients(
    value: Tensor, places: list[Tensor], vector: Tensor | None = None, **options: bool
) -> Any:
    return torch.autograd.grad(value, places, vector, allow_unused=True, **options)


def _flat(parts: Any, places: list[Tensor]) -> Tensor:
    """One vector; 0 for parameters that nothing depends on."""
    return torch.cat(
        [
            torch.zeros(p.numel()).to(p) if g is None else g.reshape(-1)
            for g, p in zip(parts, places, strict=True)
        ]
    )


def _weighted(loss: Loss, weights: Tensor) -> Loss:
    """The mean of the weighted losses of the examples."""

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = vmap(lambda o, t: loss(o[None], t[None]))(outputs, targets)
        return (weights * losses).mean()

    return weighted


def _clip_factors(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, clip_norm: float
) -> Tensor:
    """``min(1, clip_norm/‖gradient‖)`` of each example."""
    limit = check.positive_number("clip_norm", clip_norm)
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def example_loss(weights: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (x[None],)), t[None])

    def squared_norm(x: Tensor, t: Tensor) -> Tensor:
        parts = grad(example_loss)(parameters, x, t)
        return sum((g.square().sum() for g in parts.values()), torch.zeros(()).to(x))

    norms = vmap(squared_norm, chunk_size=MAX_EXAMPLES)(inputs, targets).sqrt()
    factors: Tensor = (limit / norms.clamp_min(limit)).detach()
    return factors
