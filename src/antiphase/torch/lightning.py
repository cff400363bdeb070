"""Private training with Lightning: one callback more, and the LightningModule stays as it is."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from antiphase.torch.privacy_engine import PrivacyEngine

MISSING = "PrivacyCallback needs Lightning: pip install 'antiphase[lightning]'"


def _callbacks() -> tuple[type, ...]:
    """Lightning's own Callback; its two packages have one each, and a Trainer takes that of its own only."""
    found = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            found.append(importlib.import_module(package).Callback)
        except ImportError:
            continue
    return tuple(found)


_installed = _callbacks()
_Callback: Any = type("_Callback", _installed or (object,), {})


class PrivacyCallback(_Callback):
    """Makes ``Trainer(callbacks=[PrivacyCallback(…)])`` train privately.

    ``engine`` has the mechanism, its options and the key. ``max_grad_norm``, and either ``noise_multiplier`` or
    ``target_epsilon`` with ``target_delta``, are those of its ``make_private`` and ``make_private_with_epsilon``, as
    are all other ``options``. The length of the plan is that of the Trainer (``max_epochs``, ``max_steps``), and the
    rates are those of the module's scheduler. ``log_epsilon`` is the name to log the ε spent under, every epoch.

    A checkpoint of Lightning's holds the place in the noise, the ledger and the order of the batches too:
    ``trainer.fit(…, ckpt_path=…)`` goes on there, with a key that is kept in a file (``PrivacyEngine(key=…)``).

    Guarantee: the module's one optimizer steps on the clipped sum plus noise, of batches that the ledger has seen, or
    not at all. The loss of ``training_step`` must be a mean of the examples' own losses. What the module logs about
    training data is no part of the release.   [G14, G16]
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
            raise TypeError("target_delta = None: an ε is one at a δ")
        super().__init__()
        self.engine = PrivacyEngine() if engine is None else engine
        self.optimizer: Any = None
        self._hooks: Any = None
        self._kept: dict[str, Any] | None = (
            None  # the engine's state in the checkpoint to go on from
        )
        self._delta, self._name = target_delta, log_epsilon
        self._options = {"max_grad_norm": max_grad_norm, "target_delta": target_delta, **options}
        self._make: Any = self.engine.make_private
        if target_epsilon is None:
            self._options["noise_multiplier"] = noise_multiplier
        else:
            self._make, self._options["target_epsilon"] = (
                self.engine.make_private_with_epsilon,
                target_epsilon,
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning has its optimizer and scheduler by now, and has fetched no batch yet."""
        trainer.fit_loop.setup_data()
        _refuse(trainer)
        if trainer.ckpt_path is None:
            self._kept = None  # of a checkpoint that was only tested, or with which a fit failed
        elif self._kept is None:
            # PRIVACY: without its place in the noise, steps that were released would be released again.   [G15]
            raise ValueError(
                f"ckpt_path = {str(trainer.ckpt_path)!r}: was saved without a PrivacyCallback"
            )
        scheduler, every = _scheduler(trainer)
        self._hooks, self.optimizer, loader = self._make(
            module=pl_module,
            optimizer=trainer.optimizers[0],
            data_loader=trainer.train_dataloader,
            steps=trainer.estimated_stepping_batches,
            scheduler=scheduler,
            scheduler_every=every,
            poisson_sampling=False,
            wrap_model=False,
            **self._options,
        )
        if self._kept is not None:
            self.engine.load_state_dict(self._kept)
        trainer.optimizers = [self.optimizer]
        # Lightning has no public way to exchange the loader. Where this one fails, the ledger refuses every step.
        trainer.fit_loop._data_source.instance = loader
        trainer.fit_loop._combined_loader = None
        trainer.fit_loop.setup_data()

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints: the engine's, once there is a plan."""
        return {} if self.optimizer is None else self.engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until there is a plan to go on with."""
        self._kept = state_dict

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Checks of the validation come between; dropout goes on as if there had been none."""
        if self._kept is not None:
            torch.set_rng_state(self._kept["random"])
            self._kept = None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._name is not None and self._delta is not None:
            pl_module.log(self._name, self.engine.get_epsilon(self._delta, spent=True))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._hooks is not None:
            self._hooks.cleanup()
            self._hooks = None
        self._kept = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")


def _refuse(trainer: Any) -> None:
    """What Lightning would do to gradients, steps or batches that the plan does not know."""
    loader = trainer.train_dataloader
    reasons = {
        "several processes: Lightning sums gradients before they are clipped. Use one device": trainer.world_size
        > 1,
        f"gradient_clip_val = {trainer.gradient_clip_val}: gradients are clipped example by example, to "
        "max_grad_norm of PrivacyCallback. Leave gradient_clip_val out": bool(
            trainer.gradient_clip_val
        ),
        f"accumulate_grad_batches = {trainer.accumulate_grad_batches}: Lightning divides the loss by it, so that "
        "examples would be clipped at another norm. Use a larger batch_size": trainer.accumulate_grad_batches
        != 1,
        f"{len(trainer.optimizers)} optimizers: the plan is for the steps of one": len(
            trainer.optimizers
        )
        != 1,
        "a scaler of the loss (precision 16-mixed): the examples' gradients would be clipped before they are scaled "
        "back. Use 32 or bf16": getattr(trainer.precision_plugin, "scaler", None) is not None,
        "reload_dataloaders_every_n_epochs: the plan is for one loader": trainer.reload_dataloaders_every_n_epochs
        > 0,
        f"the train dataloader is a {type(loader).__name__}: the plan is for one torch DataLoader of known "
        "length": not (
            isinstance(loader, DataLoader) and trainer.num_training_batches < float("inf")
        ),
    }
    for reason, true in reasons.items():
        if true:
            raise ValueError(reason)
    if trainer.num_training_batches != len(loader):
        raise ValueError(
            f"limit_train_batches (or overfit_batches, fast_dev_run): {trainer.num_training_batches} of {len(loader)} "
            "batches an epoch, and the plan is for whole epochs. Use a smaller dataset, or max_steps"
        )
    if trainer.estimated_stepping_batches == float("inf"):
        raise ValueError(
            "max_epochs = -1: noise that cancels over the steps is planned ahead; say how many there are"
        )


def _scheduler(trainer: Any) -> tuple[Any, str]:
    configs = trainer.lr_scheduler_configs
    if len(configs) == 1 and configs[0].frequency == 1 and not configs[0].reduce_on_plateau:
        return configs[0].scheduler, configs[0].interval
    if configs:
        why = "several schedulers, one with a frequency, or one that follows a metric"
        warnings.warn(
            f"{why}: the noise is designed for a constant rate. Privacy is exact", stacklevel=3
        )
    return None, "step"
