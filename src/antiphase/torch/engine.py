"""`PrivacyEngine`: Opacus' engine with noise that cancels itself."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import opacus
import torch
from torch import nn

from antiphase.design import design
from antiphase.errors import KeyFileError, ParticipationError, StateError
from antiphase.factorization.base import MALFORMED, Factorization
from antiphase.ledger import ParticipationLedger
from antiphase.mechanism import Mechanism, calibrate, load
from antiphase.noise.key import Key
from antiphase.participation import Participation, min_separation
from antiphase.statement import PrivacyStatement
from antiphase.torch import checkpoint, refusals
from antiphase.torch.distributed import Group, plain
from antiphase.torch.optimizer import GhostLoss, PrivateGhostOptimizer, PrivateOptimizer, PrivatePerLayerOptimizer
from antiphase.torch.plan import Plan, derive
from antiphase.torch.probe import refuse_mixing
from antiphase.torch.release import Release
from antiphase.torch.sampling import (
    OURS,
    FixedOrder,
    Recorded,
    fixed_order_loader,
    public_batch_size,
    sampled_loader,
)

OPTIMIZERS: dict[tuple[str, str], Any] = {
    ("hooks", "flat"): PrivateOptimizer,
    ("hooks", "per_layer"): PrivatePerLayerOptimizer,
    ("functorch", "flat"): PrivateOptimizer,
    ("functorch", "per_layer"): PrivatePerLayerOptimizer,
    ("ghost", "flat"): PrivateGhostOptimizer,
    ("ghost_fsdp", "flat"): PrivateGhostOptimizer,
}


class PrivacyEngine(opacus.PrivacyEngine):
    """Opacus' ``PrivacyEngine`` for every mechanism of `antiphase.design`.

    ``mechanism`` is a name, with its options as keywords, or a `Factorization`, a `Mechanism`, or the path of a file
    that holds one. With ``mechanism="dp-sgd"`` and Poisson sampling everything is Opacus' own.

    ``key`` is the secret that the noise is made from. Without one a new key is made and kept in memory, and such a
    run cannot go on after the process has ended: for that, ``Key.generate().save(path)`` and ``Key.load(path)``.

    Guarantee: what reaches the model is the clipped sum plus its row of noise, divided by a public constant.   [G16]
    """

    def __init__(
        self,
        *,
        mechanism: str | os.PathLike[str] | Factorization | Mechanism = "dp-mf+",
        accountant: str = "prv",
        secure_mode: bool = False,
        key: Key | None = None,
        **design_options: Any,
    ) -> None:
        named_dp_sgd = isinstance(mechanism, str) and mechanism == "dp-sgd"
        if secure_mode and not named_dp_sgd:
            raise ValueError(
                "secure_mode = True: noise always comes from a secret key with AES in counter mode here; leave "
                "secure_mode out, and give key=Key.load(path) to keep the key"
            )
        with warnings.catch_warnings():
            if not named_dp_sgd:
                warnings.filterwarnings("ignore", message="Secure RNG turned off")
            super().__init__(accountant=accountant, secure_mode=secure_mode)
        if isinstance(mechanism, os.PathLike) or (isinstance(mechanism, str) and Path(mechanism).suffix):
            mechanism = load(mechanism)
        if not isinstance(mechanism, str) and design_options:
            raise TypeError(f"{sorted(design_options)}: options are for designs by name; this one is made already")
        self._wanted, self._options = mechanism, design_options
        self.key = key
        self.plan: Plan | None = None
        self._mechanism: Mechanism | None = None
        self._release: Release | None = None
        self._trusted = False
        self._sampled = True  # by Opacus' Poisson sampler, where everything is Opacus' own

    # ---- Opacus' two ways in -------------------------------------------------------------------------------

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Any,
        criterion: Any = None,
        data_loader: Any,
        noise_multiplier: float | None = None,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool | None = None,
        clipping: str = "flat",
        noise_generator: Any = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        epochs: int | None = None,
        steps: int | None = None,
        scheduler: Any = None,
        scheduler_every: str = "step",
        gradient_accumulation_steps: int = 1,
        participation: Participation | str | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        memory: str | int = "2GB",
        probe: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Opacus' ``make_private``, and ``epochs`` or ``steps``, since correlated noise is planned ahead.

        Returns ``(module, optimizer, data_loader)``, with the criterion before the loader for
        ``grad_sample_mode="ghost"``. The loader has the same batches in the same order in every epoch.

        ``noise_multiplier`` is that of the whole plan seen as one Gaussian mechanism: with δ it decides ε, whatever
        the number of steps; ``target_epsilon`` and ``target_delta`` are another way to say how much. ``scheduler``
        (stepped every ``"step"`` or every ``"epoch"``) tells the learning rates ahead. ``participation`` replaces fixed
        epochs, or is ``"trusted"`` where batches have no indices: who takes part when is then the user's word, and the
        statement says so. ``probe`` looks whether the model mixes examples.
        """
        criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        wrapping: dict[str, Any] = {
            "batch_first": batch_first,
            "max_grad_norm": max_grad_norm,
            "loss_reduction": loss_reduction,
            "grad_sample_mode": grad_sample_mode,
            "wrap_model": wrap_model,
        }
        warnings.filterwarnings("ignore", message="Full backward hook is firing")  # of Opacus' hooks, at every step
        if self._uses_opacus(poisson_sampling, planned=epochs is not None or steps is not None):
            if target_epsilon is not None:
                raise TypeError(
                    f"target_epsilon = {target_epsilon}: here everything is Opacus' own, whose make_private takes a "
                    "noise_multiplier; use make_private_with_epsilon"
                )
            if self.key is not None:
                warnings.warn(
                    "key: it is not used. Here everything is Opacus' own, and noise comes from torch's generator; with "
                    "a plan (epochs=…, poisson_sampling=False) it would come from the key",
                    stacklevel=2,
                )
            if self._mechanism is not None:
                # PRIVACY: what Opacus releases is in its accountant alone, and the plan's ε would not count it.   [G15]
                raise ValueError(
                    "this engine has a plan. For Poisson samples of Opacus' own use an engine of their own"
                )
            poisson = poisson_sampling is not False
            # PRIVACY: Opacus' ε is that of Poisson samples, and holds for no other batches; see get_epsilon.   [G9]
            self._sampled = self._sampled and poisson
            return super().make_private(
                module=module,
                optimizer=optimizer,
                criterion=criterion,
                data_loader=data_loader,
                noise_multiplier=noise_multiplier,
                poisson_sampling=poisson,
                clipping=clipping,
                noise_generator=noise_generator,
                rand_on_empty=rand_on_empty,
                **wrapping,
                **kwargs,
            )
        how = grad_sample_mode, clipping
        refusals.options(poisson_sampling, noise_generator, how, OPTIMIZERS, loss_reduction, kwargs)
        if released := self._released():
            # PRIVACY: what was released before, by a plan or by Opacus, would be forgotten.   [G15]
            raise ValueError(
                f"this engine has released {released} steps. A second training on the same data is a second release: "
                "use an engine of its own, and add the two up"
            )
        refusals.warn_of_large(target_delta, data_loader)
        plan = self._planned(
            optimizer,
            self._batches(data_loader),
            epochs=epochs,
            steps=steps,
            scheduler=scheduler,
            scheduler_every=scheduler_every,
            accumulation=gradient_accumulation_steps,
            participation=participation,
        )
        mechanism = self._calibrated(plan, max_grad_norm, noise_multiplier, target_epsilon, target_delta)
        refusals.foreign_parameters(module, optimizer)
        group = Group.of(module, grad_sample_mode)
        group.require_same("mechanism", mechanism.digest)
        trusted = participation == "trusted"
        # The batch size of all processes together; a loader that is trusted is each process's own.
        batch_size = public_batch_size(data_loader) * (group.world if trusted else 1)
        loader: Any = data_loader
        if mechanism.amplified:
            refusals.what_sampling_does_not_cover(group, gradient_accumulation_steps, trusted)
            loader = sampled_loader(data_loader, mechanism)
        elif not trusted:
            loader = fixed_order_loader(data_loader)
            group.share(loader)
        refusals.other_batches(mechanism, loader)
        self.validate(module=module, optimizer=None, data_loader=None)
        refusals.what_opacus_gets_wrong(module, grad_sample_mode)
        if probe:
            refuse_mixing(module, data_loader)
        wrapped = self._prepare_model(module, **wrapping)
        if isinstance(optimizer, opacus.optimizers.DPOptimizer):
            optimizer = optimizer.original_optimizer
        private = OPTIMIZERS[how](
            optimizer=optimizer,
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=batch_size * gradient_accumulation_steps,
            loss_reduction=loss_reduction,
        )
        release = Release(
            mechanism,
            self._agreed_key(group),
            _named_shapes(module, private.params),
            float(private.expected_batch_size) if loss_reduction == "mean" else 1.0,
            batches=None if trusted else loader.batch_sampler,
            ledger=None if trusted else ParticipationLedger(_taking_part(mechanism, plan), len(loader.dataset)),
            group=group,
            memory=memory,
        )
        if mechanism.amplified:
            loader.batch_sampler.position = lambda: release.position
        group.require_same("tensors and batches", [*release._shapes.items(), release.divisor])
        private.attach(release)
        self.plan, self._mechanism, self._release, self._trusted = plan, mechanism, release, trusted
        self.accountant = PlanAccountant(self)
        if grad_sample_mode in ("ghost", "ghost_fsdp"):
            return wrapped, private, GhostLoss(wrapped, private, criterion, loss_reduction), loader
        return wrapped, private, loader

    def make_private_with_epsilon(
        self, *, target_epsilon: float, target_delta: float, epochs: int | None = None, **arguments: Any
    ) -> Any:
        """Opacus' ``make_private_with_epsilon``: just enough noise for (ε, δ) over ``epochs`` (or ``steps``)."""
        if self._uses_opacus(arguments.get("poisson_sampling"), planned=True):
            refusals.warn_of_large(target_delta, arguments.get("data_loader"))
            arguments["poisson_sampling"] = arguments.get("poisson_sampling") is not False
            return super().make_private_with_epsilon(
                target_epsilon=target_epsilon, target_delta=target_delta, epochs=epochs, **arguments
            )
        return self.make_private(target_epsilon=target_epsilon, target_delta=target_delta, epochs=epochs, **arguments)

    # ---- what it comes to ----------------------------------------------------------------------------------

    @property
    def mechanism(self) -> Mechanism | None:
        """The calibrated mechanism; None before make_private, and where everything is Opacus' own."""
        return self._mechanism

    @property
    def remaining_steps(self) -> int:
        """How many steps the plan has left."""
        return self._planned_release().remaining

    @property
    def completed_epochs(self) -> int:
        """How many whole epochs are done: where a loop over epochs goes on after a resume."""
        assert self.plan is not None
        return self._planned_release().position // self.plan.every

    def get_epsilon(self, delta: float, spent: bool = False) -> float:
        """ε at ``delta`` of the whole plan, or of what was released so far."""
        if self._mechanism is None:
            if not self._sampled:
                raise ValueError(
                    "poisson_sampling = False: the ε of DP-SGD is that of Poisson samples, and these batches are none. "
                    "Plan ahead, make_private(…, epochs=…), for an ε that holds for batches in a fixed order"
                )
            if not len(self.accountant):
                raise ValueError("nothing was released, and nothing is planned: call make_private first")
            epsilon: float = super().get_epsilon(delta)
            return epsilon
        release = self._planned_release()
        now = release.drawn if spent else self._mechanism.steps
        return self._mechanism.epsilon_of_runs([*release.earlier(), now], delta)

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """What was promised, in words and JSON."""
        if self._mechanism is None:
            raise ValueError("there is no plan to state: call make_private first, with a mechanism of antiphase's")
        release = self._planned_release()
        made = self._mechanism.statement(delta, released=release.drawn, insecure=release.key.is_insecure)
        if self._trusted:
            vouched = made.participation + ", on the user's word, not checked"
            made = dataclasses.replace(made, participation=vouched)
        if release.earlier():
            again = f"{len(release.earlier())} earlier run(s) of the same data were given up and are accounted for"
            made = dataclasses.replace(
                made, epsilon=self.get_epsilon(made.delta), released_epsilon=self.get_epsilon(made.delta, spent=True),
                mu=None, rho=None, caveats=(*made.caveats, again),
            )  # fmt: skip
        return made

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save_checkpoint(self, *, path: Any, module: nn.Module, optimizer: Any = None, **more: Any) -> None:
        """Model, optimizer, scheduler, ledgers and position, in a file that runs nothing; the key is not in it."""
        if self._mechanism is None:
            super().save_checkpoint(path=path, module=module, optimizer=optimizer, **more)
            return
        scheduler = checkpoint.only_scheduler(more)
        order = _order_of(self._planned_release().batches)
        checkpoint.save(path, module, optimizer, scheduler, self._planned_release(), order)

    def load_checkpoint(
        self, *, path: Any, module: nn.Module, optimizer: Any = None, fresh_noise: bool = False, **more: Any
    ) -> dict[str, Any]:
        """Go on where `save_checkpoint` was called: same arguments to make_private, same key.

        With ``fresh_noise`` the steps after it get noise of a new run, which is accounted as a second release.
        """
        if self._mechanism is None:
            found: dict[str, Any] = super().load_checkpoint(path=path, module=module, optimizer=optimizer, **more)
            return found
        scheduler = checkpoint.only_scheduler(more)
        release = self._planned_release()
        checkpoint.load(path, module, optimizer, scheduler, release, partial(self._go_on, fresh_noise=fresh_noise))
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of your own needs besides those of module, optimizer and scheduler: the place in the noise,
        the ledger, the order of the batches and the state of torch's generator.

        Plain values and tensors, which ``torch.load`` takes with ``weights_only=True``; the key is not in it. Of
        several processes, each has its own.
        """
        release = self._planned_release()
        place = {"release": release.state(), "order": _order_of(release.batches), "random": torch.get_rng_state()}
        made: dict[str, Any] = checkpoint.with_tensors(place)
        return made

    def load_state_dict(self, state: dict[str, Any], *, fresh_noise: bool = False) -> None:
        """Go on where `state_dict` was called: same arguments to make_private, same key, as with `load_checkpoint`."""
        self._planned_release()
        try:
            place = checkpoint.with_arrays(state)
            torch.Generator().set_state(state["random"])  # so that nothing is changed if it is none
            self._go_on(place["release"], place["order"], fresh_noise=fresh_noise)
            torch.set_rng_state(state["random"])
        except (StateError, KeyFileError, ParticipationError):
            raise
        except (*MALFORMED, RuntimeError) as error:
            raise StateError(f"this is not the state of an engine ({error})") from error

    def _go_on(self, state: Any, order: Any, *, fresh_noise: bool) -> None:
        """At the place in noise and batches where ``state`` and ``order`` were taken; refuse those of other data."""
        assert self.plan is not None
        release = self._planned_release()
        sampler: Any = getattr(release.batches, "sampler", None)
        if isinstance(sampler, OURS):
            copy.copy(sampler).restore(order, 0)  # raises for what is none, before anything is changed
        release.restore(state, fresh_noise)
        if isinstance(sampler, OURS):
            in_epoch = release.position % self.plan.every * self.plan.accumulation
            sampler.restore(order, in_epoch if isinstance(sampler, FixedOrder) else release.position)

    # ---- details -------------------------------------------------------------------------------------------

    def _uses_opacus(self, poisson_sampling: bool | None, *, planned: bool) -> bool:
        """DP-SGD on Poisson samples; and on other batches if nobody says for how long, which has no ε."""
        return self._wanted == "dp-sgd" and (poisson_sampling is not False or not planned)

    def _planned_release(self) -> Release:
        if self._release is None:
            raise ValueError("call make_private first")
        return self._release

    def _batches(self, loader: Any) -> int:
        try:
            return len(loader)
        except TypeError as error:  # an IterableDataset without a length
            made = self._wanted.factorization if isinstance(self._wanted, Mechanism) else self._wanted
            if isinstance(made, Factorization):
                return made.steps
            raise ValueError(
                "data_loader has no length, so who takes part when does not follow from it. Design the mechanism "
                "yourself, with its participation: PrivacyEngine(mechanism=antiphase.design(…, participation=…))"
            ) from error

    def _planned(self, optimizer: Any, batches: int, *, participation: Any, **how: Any) -> Plan:
        made = self._wanted.factorization if isinstance(self._wanted, Mechanism) else self._wanted
        if isinstance(made, Factorization):
            if how["epochs"] is None and how["steps"] is None:
                how["steps"] = made.steps
            participation = made.participation
        given = participation if isinstance(participation, Participation) else None
        inner = getattr(optimizer, "original_optimizer", optimizer)
        plan = derive(inner, batches, participation=given, **how)
        if isinstance(made, Factorization):
            if plan.steps != made.steps:
                raise ValueError(f"the mechanism is for {made.steps} steps, and training has {plan.steps}")
            plan = dataclasses.replace(plan, workload=made.workload, participation=made.participation)
        for note in plan.notes:
            warnings.warn(note, stacklevel=4)
        return plan

    def _calibrated(
        self,
        plan: Plan,
        clip: float | list[float],
        noise_multiplier: float | None,
        epsilon: float | None,
        delta: float | None,
    ) -> Mechanism:
        # PRIVACY: with one norm for each tensor, a record moves the sum by at most the norm of these.   [G16]
        clip_norm = math.sqrt(sum(c * c for c in clip)) if isinstance(clip, list | tuple) else float(clip)
        if isinstance(self._wanted, Mechanism):
            if epsilon is not None:
                raise ValueError(f"target_epsilon = {epsilon}: the mechanism has its noise multiplier already")
            if noise_multiplier not in (None, self._wanted.noise_multiplier) or clip_norm != self._wanted.clip_norm:
                raise ValueError(
                    f"noise_multiplier = {noise_multiplier}, max_grad_norm = {clip_norm:g}: the mechanism has "
                    f"{self._wanted.noise_multiplier:g} and {self._wanted.clip_norm:g}"
                )
            return self._wanted
        if (noise_multiplier is None) == (epsilon is None):
            raise TypeError(
                f"noise_multiplier = {noise_multiplier}, target_epsilon = {epsilon}: give one of the two, the other "
                "follows"
            )
        factorization = self._wanted
        if isinstance(factorization, str):
            factorization = design(
                factorization, workload=plan.workload, participation=plan.participation, **self._options
            )
        assert isinstance(factorization, Factorization)
        return calibrate(
            factorization, epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, clip_norm=clip_norm
        )

    def _released(self) -> int:
        """Steps, by a plan or by Opacus."""
        if self._release is not None:
            return self._release.drawn
        return sum(steps for _, _, steps in getattr(self.accountant, "history", ()))

    def _agreed_key(self, group: Group) -> Key:
        if self.key is None:
            group.require_same("key", None)
            if group.world > 1:
                raise ValueError("key = None: several processes need the same key; give key=Key.load(path) to each")
            self.key = Key.generate()
        group.require_same("key", self.key.fingerprint())
        return self.key


class PlanAccountant:
    """In the place of Opacus' accountant, which counts compositions: here the plan says what everything costs."""

    def __init__(self, engine: PrivacyEngine) -> None:
        self._engine = engine

    def get_epsilon(self, delta: float, **_: Any) -> float:
        return self._engine.get_epsilon(delta)

    def __len__(self) -> int:
        return self._engine._planned_release().position

    @classmethod
    def mechanism(cls) -> str:
        return "antiphase"

    def state_dict(self, *_: Any) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: Any) -> None:
        raise ValueError("the plan is restored by PrivacyEngine.load_checkpoint")


def _taking_part(mechanism: Mechanism, plan: Plan) -> Participation:
    """By coins, a record may be in every batch: each step was accounted for as one that has it, by its chance."""
    return min_separation(mechanism.steps, 1) if mechanism.sampler == "poisson" else plan.participation


def _named_shapes(module: nn.Module, params: list[torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The tensors in the optimizer's order, by their names in the model; noise belongs to a name."""
    names = {id(p): name for name, p in plain(module).named_parameters()}
    return {names[id(p)]: tuple(p.shape) or (1,) for p in params}


def _order_of(batches: Recorded | None) -> Any:
    sampler = getattr(batches, "sampler", None)
    return sampler.state() if isinstance(sampler, OURS) else None
