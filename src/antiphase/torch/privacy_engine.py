"""`PrivacyEngine`: Opacus' engine with noise that cancels itself."""

from __future__ import annotations

import copy
import dataclasses
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import opacus
import torch
from torch import nn

from antiphase.errors import AntiphaseWarning, KeyFileError, ParticipationError, StateError
from antiphase.factorizations.base import MALFORMED, Factorization
from antiphase.ledger.participation import ParticipationLedger
from antiphase.mechanism import Mechanism, load
from antiphase.noise.key import Key
from antiphase.participation import Participation, min_separation
from antiphase.statement import PrivacyStatement
from antiphase.torch import checkpoint, coverage, earlier_runs, validation
from antiphase.torch.batch_selection import (
    OURS,
    FixedOrder,
    Recorded,
    fixed_order_loader,
    public_batch_size,
    sampled_loader,
)
from antiphase.torch.coverage import Coverage
from antiphase.torch.distributed import Group, plain
from antiphase.torch.example_mixing import refuse_mixing
from antiphase.torch.frozen_settings import FrozenSettings, ReleasedOnce
from antiphase.torch.ghost_clipping import (
    GhostLoss,
    PoissonGhostOptimizer,
    PrivateGhostOptimizer,
    recorded,
)
from antiphase.torch.gradient_check import check_gradients
from antiphase.torch.model_state_check import UnchangedModel
from antiphase.torch.plan import Plan, PlannedRates, calibrated, planned
from antiphase.torch.poisson_sampling import PoissonLoader, refuse_other_examples
from antiphase.torch.private_optimizer import (
    IndependentNoise,
    PoissonOptimizer,
    PoissonPerLayerOptimizer,
    PrivateOptimizer,
    PrivatePerLayerOptimizer,
)
from antiphase.torch.release import Release

OPTIMIZERS: dict[tuple[str, str], Any] = {
    ("hooks", "flat"): PrivateOptimizer,
    ("hooks", "per_layer"): PrivatePerLayerOptimizer,
    ("functorch", "flat"): PrivateOptimizer,
    ("functorch", "per_layer"): PrivatePerLayerOptimizer,
    ("ghost", "flat"): PrivateGhostOptimizer,
    ("ghost_fsdp", "flat"): PrivateGhostOptimizer,
}

POISSON: dict[tuple[str, str], Any] = {
    ("hooks", "flat"): PoissonOptimizer,
    ("hooks", "per_layer"): PoissonPerLayerOptimizer,
    ("functorch", "flat"): PoissonOptimizer,
    ("functorch", "per_layer"): PoissonPerLayerOptimizer,
    ("ghost", "flat"): PoissonGhostOptimizer,
}


class PrivacyEngine(opacus.PrivacyEngine):
    """Opacus' ``PrivacyEngine`` for every mechanism of `antiphase.design`.

    ``mechanism`` is a name, with its options as keywords, or a `Factorization`, a `Mechanism`, or the path of a file
    that holds one. With ``mechanism="dp-sgd"`` and Poisson sampling noise and accountant are Opacus' own; clipping is
    ours, samples are recorded, and a step on other examples is refused.

    ``key`` is the secret that the noise is made from, or the path of its file, which is created if it is not there.
    Without one a new key is made and kept in memory, and such a run cannot go on after the process has ended.

    An engine has one plan: a second make_private before the first step voids the first, and is refused after it.

    Guarantee: what reaches the model is the clipped sum plus its row of noise, divided by a public constant.   [G16]
    """

    def __init__(
        self,
        *,
        mechanism: str | os.PathLike[str] | Factorization | Mechanism = "dp-mf+",
        accountant: str = "prv",
        secure_mode: bool = False,
        key: Key | str | os.PathLike[str] | None = None,
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
        if isinstance(mechanism, os.PathLike) or (
            isinstance(mechanism, str) and Path(mechanism).suffix
        ):
            mechanism = load(mechanism)
        if not isinstance(mechanism, str) and design_options:
            raise TypeError(
                f"{sorted(design_options)}: options are for designs by name; this one is made already"
            )
        self._wanted, self._options = mechanism, design_options
        self.key = key if key is None or isinstance(key, Key) else Key.load_or_create(key)
        self.plan: Plan | None = None
        self._optimizer: Any = None
        self._inner_guard: Any = None
        self._frozen: FrozenSettings | None = None
        self._coverage: Coverage | None = None
        self._unchanged: UnchangedModel | None = None
        self._unchecked: str | None = (
            None  # why per-example gradients were not compared with batches of one
        )
        self._warned_of_lost_key = False
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
        probe_inputs: Callable[[int], Any] | None = None,
        uncovered: str = "refuse",
        **kwargs: Any,
    ) -> Any:
        """Opacus' ``make_private``, and ``epochs`` or ``steps``, since correlated noise is planned ahead.

        Returns ``(module, optimizer, data_loader)``, with the criterion before the loader for
        ``grad_sample_mode="ghost"``. The loader has the same batches in the same order in every epoch.

        ``noise_multiplier`` is that of the whole plan seen as one Gaussian mechanism: with δ it decides ε, whatever
        the number of steps; ``target_epsilon`` and ``target_delta`` are another way to say how much. ``scheduler``
        (stepped every ``"step"`` or every ``"epoch"``) tells the learning rates ahead. ``participation`` replaces fixed
        epochs, or is ``"trusted"`` where batches have no indices: who takes part when is then the user's word, and the
        statement says so. Every parameter that requires a gradient must be in ``optimizer``; ``uncovered="freeze"``
        freezes the others.

        The gradient check compares per-example gradients with batches of one on made-up inputs;
        ``probe_inputs(count)`` makes them where they cannot be made up from the loader. ``probe=False`` leaves it
        out, and the statement says so.
        """
        criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        wrapping: dict[str, Any] = {
            "batch_first": batch_first,
            "max_grad_norm": max_grad_norm,
            "loss_reduction": loss_reduction,
            "grad_sample_mode": grad_sample_mode,
            "wrap_model": wrap_model,
        }
        validation.steps_with_closure(optimizer)
        if self._uses_opacus(poisson_sampling, planned=epochs is not None or steps is not None):
            validation.foreign_parameters(module, optimizer)
            coverage.require_coverage(module, optimizer, uncovered)
            return self._private_by_opacus(
                poisson_sampling is not False, target_epsilon, probe, probe_inputs, module=module,
                optimizer=optimizer, criterion=criterion, data_loader=data_loader,
                noise_multiplier=noise_multiplier, clipping=clipping,
                noise_generator=noise_generator, rand_on_empty=rand_on_empty, **wrapping, **kwargs,
            )  # fmt: skip
        how = grad_sample_mode, clipping
        validation.options(
            poisson_sampling, noise_generator, how, OPTIMIZERS, loss_reduction, kwargs
        )
        self._refuse_second_training()
        validation.warn_of_large(target_delta, data_loader)
        trusted = participation == "trusted"
        # Plan
        plan = planned(
            self._wanted, optimizer, data_loader, epochs=epochs, steps=steps, scheduler=scheduler,
            scheduler_every=scheduler_every, accumulation=gradient_accumulation_steps, participation=participation,
        )  # fmt: skip
        mechanism = calibrated(
            self._wanted,
            self._options,
            plan,
            max_grad_norm,
            noise_multiplier,
            target_epsilon,
            target_delta,
        )
        # Validate
        group = Group.of(module, grad_sample_mode)
        group.require_same("mechanism", mechanism.digest)
        loader = _loader_for(mechanism, data_loader, group, plan, trusted)
        self._validated(
            module, optimizer, grad_sample_mode, uncovered, data_loader if probe else None
        )
        key = self._agreed_key(group)
        # Wrap
        wrapped = recorded(
            module,
            grad_sample_mode,
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            wrap_model=wrap_model,
        )
        private = OPTIMIZERS[how](
            optimizer=getattr(optimizer, "original_optimizer", optimizer),
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=max_grad_norm,
            # The batch size of all processes together; a loader that is trusted is each process's own.
            expected_batch_size=public_batch_size(data_loader)
            * (group.world if trusted else 1)
            * plan.accumulation,
            loss_reduction=loss_reduction,
        )
        release = Release(
            mechanism,
            key,
            _named_shapes(module, private.params),
            float(private.expected_batch_size) if loss_reduction == "mean" else 1.0,
            batches=None if trusted else loader.batch_sampler,
            ledger=None
            if trusted
            else ParticipationLedger(_taking_part(mechanism), len(loader.dataset)),
            group=group,
            memory=memory,
            most_examples=_most_examples(private.expected_batch_size, loader),
            data=earlier_runs.fingerprint(key, getattr(data_loader, "dataset", None)),
        )
        if mechanism.amplified:
            loader.batch_sampler.position = lambda: release.position
        group.require_same("tensors and batches", [*release._shapes.items(), release.divisor])
        self._unchecked = "probe = False"
        if probe:
            self._unchecked = check_gradients(
                module, wrapped, grad_sample_mode, data_loader, probe_inputs
            )
        self._void_first_plan(private.original_optimizer)
        private.attach(release)
        self._inner_guard = private.original_optimizer.register_step_pre_hook(ReleasedOnce(release))
        ghost = grad_sample_mode in ("ghost", "ghost_fsdp")
        loss = GhostLoss(wrapped, private, criterion, loss_reduction) if ghost else None
        # Guard
        self._frozen = FrozenSettings(
            module=module,
            wrapped=wrapped,
            optimizer=private,
            release=release,
            loader=loader,
            criterion=loss,
        )
        rates = PlannedRates(plan, private.original_optimizer, lambda: release.position)
        self._unchanged = UnchangedModel(
            plain(module), lambda: release.position, private.has_gradients
        )
        self._unchanged.attach()
        release.after_step.append(self._unchanged.done)
        unused = coverage.UnusedParameters(private, plan.every)
        release.guards += [self._frozen, self._unchanged, rates, unused]
        self.plan, self._mechanism, self._release, self._trusted = plan, mechanism, release, trusted
        self._optimizer, self._coverage = private, Coverage.of(module)
        self.accountant = PlanAccountant(self)
        return (wrapped, private, loss, loader) if ghost else (wrapped, private, loader)

    def _validated(
        self, module: nn.Module, optimizer: Any, mode: str, uncovered: str, probed: Any
    ) -> None:
        """Refuse models and optimizers that the promise would not hold for; ``probed`` is a loader, or None."""
        validation.foreign_parameters(module, optimizer)
        coverage.require_coverage(module, optimizer, uncovered)
        self.validate(module=module, optimizer=None, data_loader=None)
        if probed is not None:
            refuse_mixing(module, probed)

    def _private_by_opacus(
        self,
        poisson: bool,
        target_epsilon: float | None,
        probe: bool,
        probe_inputs: Any,
        **arguments: Any,
    ) -> Any:
        """DP-SGD with Opacus' noise and accountant, and clipping of ours; its Poisson samples are recorded."""
        if target_epsilon is not None:
            raise TypeError(
                f"target_epsilon = {target_epsilon}: here everything is Opacus' own, whose make_private takes a "
                "noise_multiplier; use make_private_with_epsilon"
            )
        if self.key is not None:
            warnings.warn(
                "key: it is not used. Here everything is Opacus' own, and noise comes from torch's generator; with "
                "a plan (epochs=…, poisson_sampling=False) it would come from the key",
                AntiphaseWarning,
                stacklevel=3,
            )
        if self._mechanism is not None:
            # PRIVACY: what Opacus releases is in its accountant alone, and the plan's ε would not count it.   [G15]
            raise ValueError(
                "this engine has a plan. For Poisson samples of Opacus' own use an engine of their own"
            )
        # PRIVACY: Opacus' ε is that of Poisson samples, and holds for no other batches; see get_epsilon.   [G9]
        self._sampled = self._sampled and poisson
        made = super().make_private(poisson_sampling=poisson, **arguments)
        module: nn.Module = arguments["module"]
        optimizer: Any = made[1]
        guards: list[Callable[[], None]] = [partial(coverage.refuse_uncovered, module, optimizer)]
        if isinstance(optimizer, IndependentNoise):
            if probe:
                check_gradients(
                    module,
                    made[0],
                    arguments["grad_sample_mode"],
                    arguments["data_loader"],
                    probe_inputs,
                )
            unchanged = UnchangedModel(plain(module), self._released, optimizer.has_gradients)
            unchanged.attach()
            optimizer.guard_inner()
            inner: Any = made[1].original_optimizer
            inner.register_step_post_hook(lambda *_: unchanged.done())
            guards.append(unchanged)
        refuse_other_examples(optimizer, made[-1], guards)
        return made

    def _prepare_model(
        self, module: nn.Module, *, grad_sample_mode: str = "hooks", **options: Any
    ) -> Any:
        """Opacus calls this for DP-SGD on Poisson samples: per-example gradients are ours there too."""
        if grad_sample_mode not in ("hooks", "functorch", "ghost") or Group.current().world > 1:
            world = Group.current().world
            warnings.warn(
                f"grad_sample_mode = {grad_sample_mode!r}, {world} process(es): clipping is Opacus' own. "
                "Its norms are no upper bounds in floating point, so that an example may contribute more than "
                'the clip norm. Use one process and "hooks" or "ghost", or a plan (epochs=…, poisson_sampling=False)',
                AntiphaseWarning,
                stacklevel=5,
            )
            return super()._prepare_model(module, grad_sample_mode=grad_sample_mode, **options)
        self.validate(module=module, optimizer=None, data_loader=None)
        return recorded(
            module,
            grad_sample_mode,
            batch_first=options.get("batch_first", True),
            loss_reduction=options.get("loss_reduction", "mean"),
            wrap_model=options.get("wrap_model", True),
        )

    def _prepare_optimizer(self, **options: Any) -> Any:
        """Opacus calls this for DP-SGD on Poisson samples."""
        made: Any = super()._prepare_optimizer(**options)
        kind = POISSON.get(
            (options.get("grad_sample_mode", "hooks"), options.get("clipping", "flat"))
        )
        if kind is not None and not options.get("distributed", False):
            made.__class__ = kind  # of the same base, with clipping of ours
        elif not options.get("distributed", False):
            warnings.warn(
                f"clipping = {options.get('clipping')!r}: clipping is Opacus' own, whose norms are no upper bounds in "
                'floating point. Use "flat" or "per_layer"',
                AntiphaseWarning,
                stacklevel=5,
            )
        return made

    def _prepare_criterion(self, **parts: Any) -> Any:
        """Opacus calls this for ghost clipping on Poisson samples."""
        if not isinstance(parts["optimizer"], PoissonGhostOptimizer):
            return super()._prepare_criterion(**parts)
        reduction = parts.get("loss_reduction", "mean")
        return GhostLoss(parts["module"], parts["optimizer"], parts["criterion"], reduction)

    def _prepare_data_loader(self, data_loader: Any, **how: Any) -> Any:
        """Opacus' loader; one of Poisson samples records what it hands over.

        Several processes have no record, since some of Opacus' optimizers for these add noise in the backward pass.
        """
        loader: Any = super()._prepare_data_loader(data_loader, **how)
        if how["poisson_sampling"] and not how["distributed"]:
            return PoissonLoader.recording(loader, how.get("rand_on_empty", False))
        return loader

    def make_private_with_epsilon(
        self,
        *,
        target_epsilon: float,
        target_delta: float,
        epochs: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Opacus' ``make_private_with_epsilon``: just enough noise for (ε, δ) over ``epochs`` (or ``steps``)."""
        if self._uses_opacus(arguments.get("poisson_sampling"), planned=True):
            validation.warn_of_large(target_delta, arguments.get("data_loader"))
            arguments["poisson_sampling"] = arguments.get("poisson_sampling") is not False
            return super().make_private_with_epsilon(
                target_epsilon=target_epsilon, target_delta=target_delta, epochs=epochs, **arguments
            )
        return self.make_private(
            target_epsilon=target_epsilon, target_delta=target_delta, epochs=epochs, **arguments
        )

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
                raise ValueError(
                    "nothing was released, and nothing is planned: call make_private first"
                )
            epsilon: float = super().get_epsilon(delta)
            return epsilon
        release = self._planned_release()
        now = release.drawn if spent else self._mechanism.steps
        return self._mechanism.epsilon_of_runs([*release.earlier(), now], delta)

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """What was promised, in words and JSON."""
        if self._mechanism is None:
            raise ValueError(
                "there is no plan to state: call make_private first, with a mechanism of antiphase's"
            )
        release = self._planned_release()
        made = self._mechanism.statement(
            delta, released=release.drawn, insecure=release.key.is_insecure
        )
        assert self._coverage is not None
        made = dataclasses.replace(
            made, covered_tensors=self._coverage.tensors, covered_numbers=self._coverage.numbers,
            frozen_parameters=self._coverage.frozen,
        )  # fmt: skip
        if self._trusted:
            vouched = made.participation + ", on the user's word, not checked"
            made = dataclasses.replace(made, participation=vouched)
        for said in self._observations():
            made = dataclasses.replace(made, caveats=(*made.caveats, said))
        if release.earlier():
            again = f"{len(release.earlier())} earlier run(s) of the same data were given up and are accounted for"
            made = dataclasses.replace(
                made, epsilon=self.get_epsilon(made.delta), released_epsilon=self.get_epsilon(made.delta, spent=True),
                mu=None, rho=None, caveats=(*made.caveats, again),
            )  # fmt: skip
        if others := release.others_on_same_data():
            runs = [*release.earlier(), self._mechanism.steps]
            together = earlier_runs.combined_epsilon(self._mechanism, runs, others, made.delta)
            said = (
                f"{len(others)} other training(s) under this key used the same data set and are not part of the ε "
                f"above: with this one, {earlier_runs.in_words(together, made.delta)}."
            )
            made = dataclasses.replace(made, caveats=(*made.caveats, said))
        return made

    def _observations(self) -> list[str]:
        """What a reader of the statement should know of this training."""
        found = []
        if self._unchecked is not None:
            found.append(f"The gradient check was not made ({self._unchecked}).")
        if self._unchanged is not None and self._unchanged.changes_between_steps:
            count = self._unchanged.changes_between_steps
            found.append(
                f"Code outside the private step changed parameters or buffers between steps, {count} times."
            )
        return found

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        *,
        path: Any,
        module: nn.Module,
        optimizer: Any = None,
        checkpoint_dict: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Model, optimizer, scheduler, ledgers and position, in a file that runs nothing; the key is not in it.

        ``checkpoint_dict`` has plain values and tensors of yours, which `load_checkpoint` returns. Warns once if the
        key has no file, since no other process can go on then.
        """
        if self._mechanism is None:
            more["checkpoint_dict"] = checkpoint_dict
            super().save_checkpoint(path=path, module=module, optimizer=optimizer, **more)
            return
        scheduler, release = checkpoint.only_scheduler(more), self._planned_release()
        if not self._warned_of_lost_key:
            self._warned_of_lost_key = True
            checkpoint.warn_of_lost_key(release)
        own = {} if checkpoint_dict is None else checkpoint_dict
        checkpoint.save(
            path, module, optimizer, scheduler, release, _order_of(release.batches), own
        )

    def load_checkpoint(
        self,
        *,
        path: Any,
        module: nn.Module,
        optimizer: Any = None,
        fresh_noise: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        """Go on where `save_checkpoint` was called: same arguments to make_private, same key.

        Returns the ``checkpoint_dict`` that was saved.

        With ``fresh_noise`` the steps after it get noise of a new run, which is accounted as a second release.
        """
        if self._mechanism is None:
            found: dict[str, Any] = super().load_checkpoint(
                path=path, module=module, optimizer=optimizer, **more
            )
            return found
        scheduler = checkpoint.only_scheduler(more)
        release = self._planned_release()
        go_on = partial(self._go_on, fresh_noise=fresh_noise)
        return checkpoint.load(path, module, optimizer, scheduler, release, go_on)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of your own needs besides those of module, optimizer and scheduler: the place in the noise,
        the ledger, the order of the batches and the state of torch's generator.

        Plain values and tensors, which ``torch.load`` takes with ``weights_only=True``; the key is not in it. Of
        several processes, each has its own.
        """
        release = self._planned_release()
        place = {
            "release": release.state(),
            "order": _order_of(release.batches),
            "random": torch.get_rng_state(),
        }
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
            copy.copy(sampler).restore(
                order, 0
            )  # raises for what is none, before anything is changed
        release.restore(state, fresh_noise)
        if isinstance(sampler, OURS):
            in_epoch = release.position % self.plan.every * self.plan.accumulation
            sampler.restore(
                order, in_epoch if isinstance(sampler, FixedOrder) else release.position
            )
            assert self._frozen is not None
            self._frozen.accept_sampler()

    # ---- details -------------------------------------------------------------------------------------------

    def _uses_opacus(self, poisson_sampling: bool | None, *, planned: bool) -> bool:
        """DP-SGD on Poisson samples; and on other batches if nobody says for how long, which has no ε."""
        return self._wanted == "dp-sgd" and (poisson_sampling is not False or not planned)

    def _planned_release(self) -> Release:
        if self._release is None:
            raise ValueError("call make_private first")
        return self._release

    def _released(self) -> int:
        """Steps, by a plan or by Opacus."""
        if self._release is not None:
            return self._release.drawn
        return sum(steps for _, _, steps in getattr(self.accountant, "history", ()))

    def _refuse_second_training(self) -> None:
        if released := self._released():
            # PRIVACY: what was released before, by a plan or by Opacus, would be forgotten.   [G15]
            raise ValueError(
                f"this engine has released {released} steps. A second training on the same data is a second release: "
                "use an engine of its own, and add the two up"
            )

    def _void_first_plan(self, inner: Any) -> None:
        """Let nothing be released by the plan of an earlier make_private; ``inner`` is the new one's optimizer."""
        if self._release is None:
            return
        # PRIVACY: ε is that of one plan; optimizers of both could release otherwise.   [G15]
        self._release.void("make_private was called again on its engine, which replaced its plan")
        if self._unchanged is not None:
            self._unchanged.detach()
        if self._optimizer.original_optimizer is inner:
            self._optimizer.detach()  # the new private optimizer guards the inner one from now on
            self._inner_guard.remove()

    def _agreed_key(self, group: Group) -> Key:
        if self.key is None:
            group.require_same("key", None)
            if group.world > 1:
                raise ValueError(
                    "key = None: several processes need the same key; give key=Key.load(path) to each"
                )
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


def _loader_for(mechanism: Mechanism, loader: Any, group: Group, plan: Plan, trusted: bool) -> Any:
    """``loader`` with batches that the mechanism is for, recorded; the user's own if it is trusted."""
    private: Any = loader
    if mechanism.amplified:
        validation.what_sampling_does_not_cover(group, plan.accumulation, trusted)
        private = sampled_loader(loader, mechanism)
    elif not trusted:
        private = fixed_order_loader(loader)
        group.share(private)
    validation.other_batches(mechanism, private)
    return private


def _most_examples(expected: int, loader: Any) -> int:
    """The most examples of one step that the rounding of sums is covered for."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return int(expected) if isinstance(sampler, FixedOrder) else 2 * int(expected) + 100


def _taking_part(mechanism: Mechanism) -> Participation:
    """By coins, a record may be in every batch: each step was accounted for as one that has it, by its chance."""
    # PRIVACY: ε is that of the mechanism's participation, whatever the plan was derived from.   [G14]
    own = mechanism.factorization.participation
    return min_separation(mechanism.steps, 1) if mechanism.sampler == "poisson" else own


def _named_shapes(module: nn.Module, params: list[torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The tensors in the optimizer's order, by their names in the model; noise belongs to a name."""
    names = {id(p): name for name, p in plain(module).named_parameters()}
    return {names[id(p)]: tuple(p.shape) or (1,) for p in params}


def _order_of(batches: Recorded | None) -> Any:
    sampler = getattr(batches, "sampler", None)
    return sampler.state() if isinstance(sampler, OURS) else None
