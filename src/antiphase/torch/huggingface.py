"""Private training with the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler

from antiphase._util.extras import missing
from antiphase.torch.privacy_engine import PrivacyEngine

MISSING = missing("huggingface", "PrivateTrainer", "transformers and accelerate")
IGNORED_LABEL = -100  # of a token that has none
LOADER_OPTIONS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
)

try:
    _Trainer: Any = importlib.import_module("transformers").Trainer
    _causal: Any = importlib.import_module(
        "transformers.models.auto.modeling_auto"
    ).MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError:
    _Trainer, _causal = object, {}


class PrivateTrainer(_Trainer):
    """``transformers.Trainer`` that trains privately.

    Steps, accumulation, optimizer and schedule are those of the ``TrainingArguments``, with
    ``max_grad_norm=0``: that one would clip whole batches.

    Training has a loss of its own, the mean over the examples of `example_losses`. The Trainer's is
    a mean over all tokens, in which the length of one example scales the gradients of all others,
    past any clipping.

    Guarantee: the optimizer steps on the clipped sum plus noise, of batches that the ledger has
    seen, or not at all. The ``loss`` and ``grad_norm`` that the Trainer logs are those of the data,
    and not private.   [G14, G16]

    Args:
        args: positional arguments of the Trainer.
        privacy: arguments of `PrivacyEngine.make_private` or ``make_private_with_epsilon``:
            ``max_grad_norm``, and ``noise_multiplier`` or ``target_epsilon`` and ``target_delta``.
        engine: has the mechanism, its options and the key; default: ``PrivacyEngine()``.
        options: keyword arguments of the Trainer.

    Raises:
        ImportError: if transformers or accelerate is not installed.
        ValueError: if an argument of the Trainer is not supported.
    """

    def __init__(
        self,
        *args: Any,
        privacy: dict[str, Any],
        engine: PrivacyEngine | None = None,
        **options: Any,
    ) -> None:
        if _Trainer is object:
            raise ImportError(MISSING)
        super().__init__(*args, **options)
        self.engine = PrivacyEngine() if engine is None else engine
        self._privacy = privacy
        self._examples = 0  # in the forward pass under way
        self.private_optimizer: Any = None
        self._cleanup: list[Callable[[], Any]] = []  # called after training
        self._refuse_unsupported()

    def example_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """The loss of each example, from that example alone.

        The cross-entropy of its label, or the mean over its own tokens; for causal language models,
        of the next token. Override it for labels that are not classes.

        Args:
            model: the model.
            inputs: a batch.

        Raises:
            ValueError: if labels are not classes.
        """
        labels = inputs["labels"]
        if labels.is_floating_point():
            raise ValueError("labels are not classes: override PrivateTrainer.example_losses")
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits = outputs["logits"]
        base_model = getattr(self.model, "get_base_model", lambda: self.model)()
        if type(base_model).__name__ in _causal.values():
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = F.cross_entropy(
            logits.movedim(-1, 1).float(), labels, reduction="none", ignore_index=IGNORED_LABEL
        )
        tokens = (labels != IGNORED_LABEL).reshape(len(labels), -1).sum(dim=1).clamp(min=1)
        return losses.reshape(len(labels), -1).sum(dim=1) / tokens

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """Train once; a second training is a second release, and needs an engine of its own."""
        if resume_from_checkpoint:
            raise ValueError(
                "resume_from_checkpoint: it has neither the ledger nor the position in the noise"
            )
        if self.private_optimizer is not None and not self._cleanup:
            raise ValueError(
                "this trainer has trained. A second training on the same data is a second release"
            )
        try:
            return super().train(None, *args, **options)
        finally:
            while self._cleanup:
                self._cleanup.pop()()

    def get_train_dataloader(self) -> Any:
        """The recorded loader; optimizer and schedule are made with it, as a plan needs all."""
        if self.private_optimizer is None:
            self._make_private(self._plain_loader())
        return self._loader

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute gradients of single examples; clip and sum those of an accumulation at once."""
        # The Trainer clears the model's gradients, not those of the examples.
        self.private_optimizer.zero_grad()
        model.train()
        inputs = self._prepare_inputs(inputs)
        self._examples = len(next(iter(inputs.values())))
        with self.compute_loss_context_manager():
            losses = self.example_losses(model, inputs)
        if losses.shape != (self._examples,):
            raise ValueError(
                f"example_losses has shape {tuple(losses.shape)}, for {self._examples} examples"
            )
        # PRIVACY: not scaled by tokens or accumulation, which depend on other examples.   [G16]
        loss = losses.mean()
        loss.backward()
        self._examples = 0
        if not self.accelerator.sync_gradients:
            self.private_optimizer.signal_skip_step(do_skip=True)
            self.private_optimizer.step()
        return loss.detach() / self.current_gradient_accumulation_steps

    def _refuse_unsupported(self) -> None:
        args = self.args
        clip, devices = args.max_grad_norm, max(args.world_size, args.n_gpu)
        own_loss = self.compute_loss_func is not None or self.label_smoother is not None
        refusals = [
            (clip, f"max_grad_norm = {clip} clips whole batches. Use TrainingArguments with 0"),
            (devices > 1, "several devices: sums before clipping. Use one device"),
            (args.fp16, "fp16 scales the loss before clipping. Use bf16, or neither"),
            (args.gradient_checkpointing, "gradient_checkpointing runs layers twice"),
            (args.auto_find_batch_size, "auto_find_batch_size: the plan is for one batch size"),
            (self.model_init is not None, "model_init: the plan is for one model"),
            (own_loss, "compute_loss_func, label_smoothing_factor: override example_losses"),
        ]
        for unsupported, reason in refusals:
            if unsupported:
                raise ValueError(reason)

    def _plain_loader(self) -> DataLoader[Any]:
        """The Trainer's loader without accelerate's, which hides the sampler and reads ahead."""
        loader, args = super().get_train_dataloader(), self.args
        sampler = loader.batch_sampler.sampler
        if isinstance(sampler, RandomSampler):
            seed = args.seed if args.data_seed is None else args.data_seed
            generator = torch.Generator().manual_seed(seed)
            sampler = RandomSampler(loader.dataset, generator=generator)
        options = {name: getattr(loader, name) for name in LOADER_OPTIONS}
        options["drop_last"] = args.dataloader_drop_last
        return DataLoader(loader.dataset, self._train_batch_size, sampler=sampler, **options)

    def _make_private(self, loader: DataLoader[Any]) -> None:
        steps = self.set_initial_training_values(self.args, loader)[-1]
        optimizer = self.create_optimizer()
        scheduler = self.create_scheduler(steps, optimizer)
        self._created_lr_scheduler = False  # or the Trainer would make another, of the same rates
        make_private: Any = self.engine.make_private
        if "target_epsilon" in self._privacy:
            make_private = self.engine.make_private_with_epsilon
        hooks, self.private_optimizer, self._loader = make_private(
            module=self.model,
            optimizer=optimizer,
            data_loader=loader,
            steps=steps,
            scheduler=scheduler,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            poisson_sampling=False,
            wrap_model=False,
            **self._privacy,
        )
        self.optimizer = self.private_optimizer
        embeddings = [m for m in self.model.modules() if isinstance(m, nn.Embedding)]
        self._cleanup = [
            hooks.cleanup,
            *(m.register_forward_pre_hook(self._expand_shared).remove for m in embeddings),
        ]

    def _expand_shared(self, _: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
        """Look up positions that a model shares once for each example, for gradients of each."""
        indices = args[0]
        if self._examples > 1 and len(indices) == 1:
            return (indices.expand(self._examples, *indices.shape[1:]),)
        return None
