"""Private training with the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler

from antiphase.torch.privacy_engine import PrivacyEngine

MISSING = "PrivateTrainer needs transformers and accelerate: pip install 'antiphase[huggingface]'"
IGNORED = -100  # the label of a token that has none
LOADER = (
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

    ``engine`` has the mechanism, its options and the key; ``privacy`` are the arguments of its ``make_private`` or
    ``make_private_with_epsilon``: ``max_grad_norm``, and ``noise_multiplier`` or ``target_epsilon`` and
    ``target_delta``. Steps, accumulation, optimizer and schedule are those of the ``TrainingArguments``, in which
    ``max_grad_norm=0``: that one would clip whole batches.

    Training has a loss of its own, the plain mean over the examples of `example_losses`. The Trainer's is a mean over
    all tokens, in which the length of one example scales the gradients of all others, past any clipping.

    Guarantee: the optimizer steps on the clipped sum plus noise, of batches that the ledger has seen, or not at all.
    The ``loss`` and ``grad_norm`` that the Trainer logs are those of the data, and no part of the release.   [G14, G16]
    """

    def __init__(
        self, *args: Any, privacy: dict[str, Any], engine: PrivacyEngine | None = None, **more: Any
    ) -> None:
        if _Trainer is object:
            raise ImportError(MISSING)
        super().__init__(*args, **more)
        self.engine = PrivacyEngine() if engine is None else engine
        self._privacy, self._size = privacy, 0
        self.private_optimizer: Any = None
        self._undo: list[Any] = []  # what to call after training
        self._refuse()

    def example_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """The loss of each example, from that example alone. Override it for labels that are not classes.

        Here the cross-entropy of its label, or the mean over its own tokens; for causal language models, of the next.
        """
        labels = inputs["labels"]
        if labels.is_floating_point():
            raise ValueError("labels are not classes: override PrivateTrainer.example_losses")
        logits = model(**{name: value for name, value in inputs.items() if name != "labels"})[
            "logits"
        ]
        if (
            type(getattr(self.model, "get_base_model", lambda: self.model)()).__name__
            in _causal.values()
        ):
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = F.cross_entropy(
            logits.movedim(-1, 1).float(), labels, reduction="none", ignore_index=IGNORED
        )
        counted = (labels != IGNORED).reshape(len(labels), -1).sum(dim=1).clamp(min=1)
        return each.reshape(len(labels), -1).sum(dim=1) / counted

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """The Trainer's, once: a second training is a second release, with an engine of its own."""
        if resume_from_checkpoint:
            raise ValueError(
                "resume_from_checkpoint: it has neither the ledger nor the place in the noise"
            )
        if self.private_optimizer is not None and not self._undo:
            raise ValueError(
                "this trainer has trained. A second training on the same data is a second release"
            )
        try:
            return super().train(None, *args, **options)
        finally:
            while self._undo:
                self._undo.pop()()

    def get_train_dataloader(self) -> Any:
        """The recorded loader; optimizer and schedule are made with it, since a plan needs all three."""
        if self.private_optimizer is None:
            self._make_private(self._plain_loader())
        return self._loader

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Gradients of single examples. All but the last batch of an accumulation are clipped and summed at once."""
        self.private_optimizer.zero_grad()  # the Trainer clears the model's gradients, not those of the examples
        model.train()
        inputs = self._prepare_inputs(inputs)
        self._size = len(next(iter(inputs.values())))
        with self.compute_loss_context_manager():
            losses = self.example_losses(model, inputs)
        if losses.shape != (self._size,):
            raise ValueError(
                f"example_losses has shape {tuple(losses.shape)}, for {self._size} examples"
            )
        # PRIVACY: not scaled by tokens or accumulation; Opacus multiplies by the number of examples.   [G16]
        (loss := losses.mean()).backward()
        self._size = 0
        if not self.accelerator.sync_gradients:
            self.private_optimizer.signal_skip_step(do_skip=True)
            self.private_optimizer.step()
        return loss.detach() / self.current_gradient_accumulation_steps

    def _refuse(self) -> None:
        args = self.args
        reasons = {
            f"TrainingArguments(max_grad_norm={args.max_grad_norm}): it clips whole batches; examples are clipped to "
            "privacy['max_grad_norm']. Say TrainingArguments(max_grad_norm=0)": bool(
                args.max_grad_norm
            ),
            "several devices: gradients would be summed before they are clipped": max(
                args.world_size, args.n_gpu
            )
            > 1,
            "fp16: a scaled loss would be clipped before it is scaled back. Use bf16, or neither": args.fp16,
            "gradient_checkpointing: layers run twice, and Opacus would count them twice": args.gradient_checkpointing,
            "auto_find_batch_size: the plan is for one": args.auto_find_batch_size,
            "model_init: a plan is for one model": self.model_init is not None,
            "compute_loss_func, label_smoothing_factor: training has a loss of its own; override "
            "example_losses": self.compute_loss_func is not None or self.label_smoother is not None,
        }
        for reason in (reason for reason, true in reasons.items() if true):
            raise ValueError(reason)

    def _plain_loader(self) -> DataLoader[Any]:
        """The Trainer's loader without accelerate's, which hides the sampler and reads ahead."""
        made, args = super().get_train_dataloader(), self.args
        options, sampler = (
            {name: getattr(made, name) for name in LOADER},
            made.batch_sampler.sampler,
        )
        if isinstance(sampler, RandomSampler):
            generator = torch.Generator().manual_seed(
                args.seed if args.data_seed is None else args.data_seed
            )
            sampler = RandomSampler(made.dataset, generator=generator)
        options["drop_last"] = args.dataloader_drop_last
        return DataLoader(made.dataset, self._train_batch_size, sampler=sampler, **options)

    def _make_private(self, loader: DataLoader[Any]) -> None:
        steps = self.set_initial_training_values(self.args, loader)[-1]
        scheduler = self.create_scheduler(steps, optimizer := self.create_optimizer())
        self._created_lr_scheduler = False  # or the Trainer would make another, of the same rates
        make = (
            self.engine.make_private_with_epsilon
            if "target_epsilon" in self._privacy
            else self.engine.make_private
        )
        hooks, self.private_optimizer, self._loader = make(
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
        self._undo = [
            hooks.cleanup,
            *(m.register_forward_pre_hook(self._for_each).remove for m in embeddings),
        ]

    def _for_each(self, _: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
        """Positions that a model looks up once for all examples, once for each: else none has a gradient of its own."""
        return (
            (args[0].expand(self._size, *args[0].shape[1:]),)
            if self._size > 1 and len(args[0]) == 1
            else None
        )
