"""`PrivacyEngine`: Opacus' engine with correlated noise."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from opacus.accountants.registry import _ACCOUNTANTS
from torch import nn

from antiphase._util import checks as check
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.participation import Participation
from antiphase.statement import PrivacyStatement
from antiphase.torch import checkpoint
from antiphase.torch.argument_checks import check_arguments
from antiphase.torch.opacus_dp_sgd import OpacusEngine
from antiphase.torch.plan import TrainingPlan, plan_training
from antiphase.torch.plan_accountant import PlanAccountant, describe_run, privacy_statement
from antiphase.torch.planned_mechanism import checked_mechanism, planned_mechanism
from antiphase.torch.request import Request, warn_of_large_delta
from antiphase.torch.user_warnings import warn
from antiphase.torch.validation import validate
from antiphase.torch.wrapping import PrivateTraining, wrap

NO_ARGUMENTS = ("self", "kwargs")  # local names of make_private that are not fields of a `Request`


class PrivacyEngine(OpacusEngine):
    """Opacus' `PrivacyEngine` for every mechanism of `antiphase.design`.

    With ``mechanism="dp-sgd"`` and Poisson sampling, noise and accountant are Opacus' own; clipping
    is ours, samples are recorded, and a step on other examples is refused.

    An engine has one plan: a second `make_private` before the first step voids the first, and is
    refused after it.

    Guarantee: what reaches the model is the clipped sum plus its row of noise, divided by a public
    constant.   [G16]

    Args:
        mechanism: the name of a design, a `Factorization` or `Mechanism`, or the path of a file
            that holds one.
        accountant: Opacus' accountant, for DP-SGD on Poisson samples.
        secure_mode: Opacus' secure mode, for DP-SGD on Poisson samples.
        key: the secret that the noise is made from, or the path of its file, which is created if
            it does not exist. By default a new key is kept in memory; such a run cannot be resumed
            by another process.
        design_options: options of a design that is given by name.

    Raises:
        ValueError: if there is no such design or accountant, or ``secure_mode`` is given for
            correlated noise, which is always secure.
        TypeError: if the design has no such option, or there are options for a mechanism that is
            designed already.

    Attributes:
        key: the secret that the noise is made from, or None before `make_private`.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.randn(60, 5), torch.randint(2, (60,)))
        >>> model = torch.nn.Linear(5, 2)
        >>> engine = PrivacyEngine(mechanism="dp-mf")
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     data_loader=DataLoader(data, batch_size=12),
        ...     noise_multiplier=1.0,
        ...     max_grad_norm=1.0,
        ...     epochs=3,
        ... )
        >>> engine.remaining_steps
        15
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
        mechanism = checked_mechanism(mechanism, design_options)
        check.choice("accountant", accountant, tuple(_ACCOUNTANTS))
        is_dp_sgd = isinstance(mechanism, str) and mechanism == "dp-sgd"
        if secure_mode and not is_dp_sgd:
            raise ValueError(
                "secure_mode = True: noise always comes from a secret key with AES in counter mode "
                "here; leave secure_mode out, and give key=Key.load(path) to keep the key"
            )
        with warnings.catch_warnings():
            if not is_dp_sgd:
                warnings.filterwarnings("ignore", message="Secure RNG turned off")
            super().__init__(accountant=accountant, secure_mode=secure_mode)
        self.key = key if key is None or isinstance(key, Key) else Key.load_or_create(key)
        self._requested_mechanism, self._design_options = mechanism, design_options
        self._training: PrivateTraining | None = None
        self._warned_of_lost_key = False

    def __repr__(self) -> str:
        if self._training is not None:
            return f"<PrivacyEngine {describe_run(self._training.release)}>"
        requested = self._requested_mechanism
        name = requested if isinstance(requested, str) else repr(requested)
        done = f"{self._opacus_steps} steps released by Opacus" if self._opacus_steps else "no plan"
        return f"<PrivacyEngine {name}: {done}>"

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
        progress: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Make a training private: plan it, validate its parts, and wrap them.

        As Opacus' ``make_private``, with the length of the training (``epochs`` or ``steps``),
        since correlated noise is planned ahead.

        Args:
            module: the model.
            optimizer: the optimizer, which must have every parameter that requires a gradient.
            criterion: the loss, for ghost clipping; default: cross-entropy.
            data_loader: the loader of the training data. The one that is returned has the same
                batches in the same order in every epoch.
            noise_multiplier: of the whole plan, seen as one Gaussian mechanism: with δ it decides
                ε, whatever the number of steps. Or give ``target_epsilon``.
            max_grad_norm: the clip norm; a list of one for each tensor if ``clipping`` is
                "per_layer".
            batch_first: whether the first dimension of inputs is that of examples.
            loss_reduction: "mean" or "sum" of the losses of a batch.
            poisson_sampling: Opacus' Poisson sampling, for ``mechanism="dp-sgd"`` alone.
            clipping: "flat" or "per_layer".
            noise_generator: for DP-SGD on Poisson samples alone.
            grad_sample_mode: "hooks", "functorch" (the same), "ghost", or "ghost_fsdp" for models
                of fully_shard.
            wrap_model: whether to wrap the model; if False, hooks are added to it instead.
            rand_on_empty: Opacus' stand-in for empty batches, for DP-SGD on Poisson samples alone.
            epochs: passes over the data; or give ``steps``.
            steps: steps of the optimizer; or give ``epochs``.
            scheduler: the learning-rate scheduler, whose rates are read ahead; default: constant
                rates.
            scheduler_every: whether the scheduler is stepped every "step" or every "epoch".
            gradient_accumulation_steps: batches of one step of the optimizer.
            participation: in which steps one example may take part, instead of once per epoch; or
                "trusted" if batches have no indices: who takes part is then the user's word, and
                the statement says so. Of a loader without a length each example takes part at most
                once in all ``steps``.
            target_epsilon: ε of the whole plan, instead of ``noise_multiplier``.
            target_delta: δ for ``target_epsilon``, and of the statement.
            memory: for the noise, as "2GB" or in bytes.
            probe: whether to compare per-example gradients with batches of one on made-up inputs;
                the statement says if they were not.
            probe_inputs: makes the model's inputs for a number of examples, if they cannot be made
                up from the loader.
            uncovered: "refuse" parameters that are not in the optimizer, or "freeze" them.
            progress: whether to show the progress of a long design, in terminals and notebooks.
            kwargs: further arguments of Opacus, for DP-SGD on Poisson samples alone.

        Returns:
            ``(module, optimizer, data_loader)``, with the criterion before the loader for ghost
            clipping.

        Raises:
            ValueError: if an argument, the model, the optimizer or the loader is not supported.
            TypeError: if an argument is missing or not known.
            PerExampleGradientError: if a per-example gradient is wrong.
            ModelChangedError: if a forward or backward pass writes into the model.
            StateError: if processes that train together disagree.
        """
        arguments = {name: value for name, value in locals().items() if name not in NO_ARGUMENTS}
        if criterion is None:
            arguments["criterion"] = nn.CrossEntropyLoss()
        request = Request(**arguments, extra=kwargs)
        check_arguments(request)
        if self._uses_opacus(poisson_sampling, request.has_length):
            self._refuse_mixed_accounting()
            return self._make_dp_sgd_private(request)
        request.refuse_unplanned_arguments()
        self._refuse_second_training()
        plan = plan_training(self._requested_mechanism, request)
        mechanism = planned_mechanism(
            self._requested_mechanism, self._design_options, plan, request
        )
        group = validate(request, plan, mechanism)
        self.key = group.agreed_key(self.key)
        training = wrap(request, plan, mechanism, group, self.key)
        if self._training is not None:
            self._training.replace_by(training)
        self._training, self.accountant = training, PlanAccountant(training.release)
        return training.result

    def make_private_with_epsilon(
        self,
        *,
        target_epsilon: float,
        target_delta: float,
        epochs: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Make a training private with just enough noise for (ε, δ).

        Args:
            target_epsilon: ε of the whole training.
            target_delta: δ of the whole training.
            epochs: passes over the data; or give ``steps``.
            arguments: those of `make_private`.

        Returns:
            ``(module, optimizer, data_loader)``, with the criterion before the loader for ghost
            clipping.

        Raises:
            ValueError: if (ε, δ) cannot be met, or `make_private` refuses an argument.
            TypeError: if an argument is missing or not known.

        Example:
            >>> import torch
            >>> from torch.utils.data import DataLoader, TensorDataset
            >>> data = TensorDataset(torch.randn(60, 5), torch.randint(2, (60,)))
            >>> model = torch.nn.Linear(5, 2)
            >>> engine = PrivacyEngine(mechanism="dp-mf")
            >>> model, optimizer, loader = engine.make_private_with_epsilon(
            ...     module=model,
            ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            ...     data_loader=DataLoader(data, batch_size=12),
            ...     max_grad_norm=1.0,
            ...     target_epsilon=2.0,
            ...     target_delta=1e-5,
            ...     epochs=3,
            ... )
            >>> 1.99 < engine.get_epsilon(1e-5) <= 2.0
            True
        """
        target: dict[str, Any] = {
            "target_epsilon": target_epsilon,
            "target_delta": target_delta,
            "epochs": epochs,
        }
        poisson_sampling = arguments.get("poisson_sampling")
        if not self._uses_opacus(poisson_sampling, has_length=True):
            return self.make_private(**target, **arguments)
        warn_of_large_delta(target_delta, arguments.get("data_loader"))
        arguments.pop("progress", None)  # Opacus shows none
        arguments["poisson_sampling"] = poisson_sampling is not False
        return super().make_private_with_epsilon(**target, **arguments)

    def _uses_opacus(self, poisson_sampling: bool | None, has_length: bool) -> bool:
        """Whether training is Opacus' DP-SGD: on Poisson samples, or on others without a plan."""
        by_opacus = poisson_sampling is not False or not has_length
        return isinstance(self._requested_mechanism, str) and (
            self._requested_mechanism == "dp-sgd" and by_opacus
        )

    def _refuse_mixed_accounting(self) -> None:
        if self.key is not None:
            warn(
                "key: it is not used. Opacus' noise comes from torch's generator; with a plan "
                "(epochs=…, poisson_sampling=False) it would come from the key"
            )
        if self._training is not None:
            # PRIVACY: the plan's ε does not count what Opacus releases.   [G15]
            raise ValueError(
                "this engine has a plan. For Poisson samples of Opacus' own use an engine of their "
                "own"
            )

    def _refuse_second_training(self) -> None:
        released = self._opacus_steps if self._training is None else self._training.release.drawn
        if released:
            # PRIVACY: what a plan or Opacus released before would be forgotten.   [G15]
            raise ValueError(
                f"this engine has released {released} steps. A second training on the same data is "
                "a second release: use an engine of its own, and add the two up"
            )

    @property
    def _planned(self) -> PrivateTraining:
        if self._training is None:
            raise ValueError("call make_private first")
        return self._training

    @property
    def plan(self) -> TrainingPlan | None:
        """The plan; None before `make_private`, and if everything is Opacus' own."""
        return None if self._training is None else self._training.plan

    @property
    def mechanism(self) -> Mechanism | None:
        """The calibrated mechanism; None before `make_private`, and if all is Opacus' own."""
        return None if self._training is None else self._training.mechanism

    @property
    def remaining_steps(self) -> int:
        """Number of steps that the plan has left."""
        return self._planned.release.remaining

    @property
    def completed_epochs(self) -> int:
        """Number of whole epochs done: where a loop over epochs goes on after a resume."""
        return self._planned.release.position // self._planned.plan.steps_per_epoch

    def get_epsilon(self, delta: float, spent: bool = False) -> float:
        """ε of the training.

        Args:
            delta: δ of the guarantee.
            spent: whether to count what was released so far instead of the whole plan.

        Raises:
            ValueError: if nothing was released or planned, or no ε is known.
        """
        if self._training is None:
            return self._dp_sgd_epsilon(delta)
        return PlanAccountant(self._training.release).get_epsilon(delta, spent)

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """The privacy guarantee of the training, in words and JSON.

        Args:
            delta: δ of the guarantee; default: ``target_delta``.

        Raises:
            ValueError: if there is no plan.
        """
        if self._training is None:
            raise ValueError(
                "there is no plan to state: call make_private first, with a mechanism of "
                "antiphase's"
            )
        return privacy_statement(self._training, delta)

    def save_checkpoint(
        self,
        *,
        path: Any,
        module: nn.Module,
        optimizer: Any = None,
        checkpoint_dict: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Save model, optimizer, ledgers and position in a file that runs no code.

        The key is not in it. Warns once if the key has no file, since no other process can resume
        then.

        Args:
            path: of the file; with several processes each has its own.
            module: the model.
            optimizer: the private optimizer, or None.
            checkpoint_dict: plain values and tensors of yours, which `load_checkpoint` returns.
            options: ``scheduler``; for DP-SGD on Poisson samples, those of Opacus.

        Raises:
            TypeError: if a value cannot be kept, or an option is not known.
        """
        if self._training is None:
            super().save_checkpoint(
                path=path,
                module=module,
                optimizer=optimizer,
                checkpoint_dict=checkpoint_dict,
                **options,
            )
            return
        scheduler = checkpoint.take_scheduler(options)
        if not self._warned_of_lost_key:
            self._warned_of_lost_key = True
            checkpoint.warn_of_lost_key(self._training.release)
        extra = {} if checkpoint_dict is None else checkpoint_dict
        checkpoint.save(self._training, path, module, optimizer, scheduler, extra)

    def load_checkpoint(
        self,
        *,
        path: Any,
        module: nn.Module,
        optimizer: Any = None,
        fresh_noise: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Resume from a file of `save_checkpoint`.

        Call `make_private` with the same arguments and the same key first.

        Args:
            path: of the file.
            module: the model.
            optimizer: the private optimizer, or None.
            fresh_noise: whether the steps after it get noise of a new run, which is accounted as a
                second release.
            options: ``scheduler``; for DP-SGD on Poisson samples, those of Opacus.

        Returns:
            The ``checkpoint_dict`` that was saved.

        Raises:
            FileFormatError: if the file is damaged, or of another model.
            StateError: if it is of another mechanism, process or run.
            KeyFileError: if it is of another key, or there is no record of its releases.
            ParticipationError: if it is of other data.
        """
        if self._training is None:
            contents: dict[str, Any] = super().load_checkpoint(
                path=path, module=module, optimizer=optimizer, **options
            )
            return contents
        scheduler = checkpoint.take_scheduler(options)
        return checkpoint.load(
            self._training, path, module, optimizer, scheduler, fresh_noise=fresh_noise
        )

    def state_dict(self) -> dict[str, Any]:
        """Position in the noise, ledger, order of batches and the state of torch's generator.

        What a checkpoint of your own needs besides the states of module, optimizer and scheduler:
        plain values and tensors, which ``torch.load`` takes with ``weights_only=True``. The key is
        not in it. Of several processes, each has its own.
        """
        return checkpoint.state_dict(self._planned)

    def load_state_dict(self, state: dict[str, Any], *, fresh_noise: bool = False) -> None:
        """Resume from what `state_dict` returned, as with `load_checkpoint`.

        Args:
            state: what `state_dict` returned.
            fresh_noise: whether the steps after it get noise of a new run, which is accounted as a
                second release.

        Raises:
            StateError: if it is of another mechanism, process or run.
            KeyFileError: if it is of another key, or there is no record of its releases.
            ParticipationError: if it is of other data.
        """
        checkpoint.load_state_dict(self._planned, state, fresh_noise=fresh_noise)
