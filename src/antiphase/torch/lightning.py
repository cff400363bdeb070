"""Private training with Lightning, by one callback."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.utils.data import DataLoader

from antiphase._util.extras import missing
from antiphase.torch.privacy_engine import PrivacyEngine
from antiphase.torch.user_warnings import warn

MISSING = missing("lightning", "PrivacyCallback", "Lightning")


def _installed_callbacks() -> tuple[type, ...]:
    """Lightning's Callback: each of its two packages has one, and a Trainer takes its own only."""
    callbacks = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            callbacks.append(importlib.import_module(package).Callback)
        except ImportError:
            continue
    return tuple(callbacks)


_installed = _installed_callbacks()
_Callback: Any = type("_Callback", _installed or (object,), {})


class PrivacyCallback(_Callback):
    """Makes ``Trainer(callbacks=[PrivacyCallback(…)])`` train privately.

    The length of the plan is that of the Trainer (``max_epochs``, ``max_steps``), and the learning
    rates are those of the module's scheduler. A checkpoint of Lightning also holds the position in
    the noise, the ledger and the order of the batches: ``trainer.fit(…, ckpt_path=…)`` resumes
    there, with a key that is kept in a file (``PrivacyEngine(key=…)``).

    Guarantee: the module's one optimizer steps on the clipped sum plus noise, of batches that the
    ledger has seen, or not at all. The loss of ``training_step`` must be a mean of the examples'
    own losses. What the module logs about training data is not private.   [G14, G16]

    Args:
        engine: has the mechanism, its options and the key; default: ``PrivacyEngine()``.
        max_grad_norm: the clip norm.
        noise_multiplier: of the whole plan; or give ``target_epsilon``.
        target_epsilon: ε of the whole plan; or give ``noise_multiplier``.
        target_delta: δ of the whole plan.
        log_epsilon: the name under which to log the ε spent, every epoch; default: not logged.
        options: further arguments of `PrivacyEngine.make_private`.

    Raises:
        ImportError: if Lightning is not installed.
        TypeError: unless one of noise multiplier and ε is given, and δ with ε.
    """

    def __init__(
        self,
        engine: PrivacyEngine | None = None,
        *,
        max_grad_norm: float | list[float],
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        log_epsilon: str | None = None,
        **options: Any,
    ) -> None:
        if not _installed:
            raise ImportError(MISSING)
        if (noise_multiplier is None) == (target_epsilon is None):
            raise TypeError(
                "give noise_multiplier, or target_epsilon and target_delta: one of the two"
            )
        if target_delta is None and (target_epsilon is not None or log_epsilon is not None):
            raise TypeError("target_delta = None: an ε needs a δ")
        super().__init__()
        self.engine = PrivacyEngine() if engine is None else engine
        self.optimizer: Any = None
        self._hooks: Any = None
        self._resumed_state: dict[str, Any] | None = None  # the engine's, in a checkpoint
        self._delta, self._log_epsilon = target_delta, log_epsilon
        self._make: Any = self.engine.make_private
        self._options = {"max_grad_norm": max_grad_norm, "target_delta": target_delta, **options}
        if target_epsilon is None:
            self._options["noise_multiplier"] = noise_multiplier
        else:
            self._make = self.engine.make_private_with_epsilon
            self._options["target_epsilon"] = target_epsilon

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the training private: optimizer and scheduler exist, and no batch was fetched."""
        trainer.fit_loop.setup_data()
        _refuse_unsupported(trainer)
        if trainer.ckpt_path is None:
            # Of a checkpoint that was only tested, or with which a fit failed.
            self._resumed_state = None
        elif self._resumed_state is None:
            # PRIVACY: without the position in the noise, steps would be released again.   [G15]
            raise ValueError(
                f"ckpt_path = {str(trainer.ckpt_path)!r}: was saved without a PrivacyCallback"
            )
        scheduler, interval = _scheduler(trainer)
        self._hooks, self.optimizer, loader = self._make(
            module=pl_module,
            optimizer=trainer.optimizers[0],
            data_loader=trainer.train_dataloader,
            steps=trainer.estimated_stepping_batches,
            scheduler=scheduler,
            scheduler_every=interval,
            poisson_sampling=False,
            wrap_model=False,
            **self._options,
        )
        if self._resumed_state is not None:
            self.engine.load_state_dict(self._resumed_state)
        trainer.optimizers = [self.optimizer]
        # Lightning has no public way to exchange the loader. If this one fails, the ledger refuses
        # every step.
        trainer.fit_loop._data_source.instance = loader
        trainer.fit_loop._combined_loader = None
        trainer.fit_loop.setup_data()

    def state_dict(self) -> dict[str, Any]:
        """The state of the engine, for Lightning's checkpoints; empty before there is a plan."""
        return {} if self.optimizer is None else self.engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until there is a plan to resume."""
        self._resumed_state = state_dict

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set torch's generator back, which checks of the validation have used since."""
        if self._resumed_state is not None:
            torch.set_rng_state(self._resumed_state["random"])
            self._resumed_state = None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the ε spent, if asked."""
        if self._log_epsilon is not None and self._delta is not None:
            pl_module.log(self._log_epsilon, self.engine.get_epsilon(self._delta, spent=True))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove the hooks of the model."""
        if self._hooks is not None:
            self._hooks.cleanup()
            self._hooks = None
        self._resumed_state = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove the hooks of the model."""
        self.teardown(trainer, pl_module, "fit")


def _refuse_unsupported(trainer: Any) -> None:
    """Refuse what Lightning would do to gradients, steps or batches that the plan does not know."""
    loader = trainer.train_dataloader
    clip, accumulation = trainer.gradient_clip_val, trainer.accumulate_grad_batches
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    has_length = isinstance(loader, DataLoader) and trainer.num_training_batches < float("inf")
    refusals = [
        (trainer.world_size > 1, "several processes: sums before clipping. Use one device"),
        (clip, f"gradient_clip_val = {clip} clips whole batches. Leave it out"),
        (accumulation != 1, f"accumulate_grad_batches = {accumulation} scales the losses"),
        (len(trainer.optimizers) != 1, f"{len(trainer.optimizers)} optimizers: a plan is for one"),
        (scaler is not None, "precision 16-mixed scales the loss. Use 32 or bf16"),
        (trainer.reload_dataloaders_every_n_epochs > 0, "reload_dataloaders_every_n_epochs > 0"),
        (not has_length, f"{type(loader).__name__}: give one torch DataLoader of known length"),
    ]
    for unsupported, reason in refusals:
        if unsupported:
            raise ValueError(reason)
    batches = trainer.num_training_batches
    if batches != len(loader):
        raise ValueError(
            "limit_train_batches (or overfit_batches, fast_dev_run): an epoch has "
            f"{batches} of {len(loader)} batches, and the plan is for whole epochs. Use max_steps"
        )
    if trainer.estimated_stepping_batches == float("inf"):
        raise ValueError(
            "max_epochs = -1: correlated noise is planned ahead; say how many epochs there are"
        )


def _scheduler(trainer: Any) -> tuple[Any, str]:
    """The scheduler, and whether it is stepped every "step" or every "epoch"."""
    configs = trainer.lr_scheduler_configs
    if len(configs) == 1 and configs[0].frequency == 1 and not configs[0].reduce_on_plateau:
        return configs[0].scheduler, configs[0].interval
    if configs:
        warn(
            "several schedulers, one with a frequency, or one that follows a metric: the noise is "
            "designed for a constant rate. Privacy is exact"
        )
    return None, "step"
