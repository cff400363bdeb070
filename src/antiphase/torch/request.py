"""Arguments of `make_private`, and refusal of those not supported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.data import RandomSampler, SequentialSampler

from antiphase._util import checks as check
from antiphase.participation import Participation
from antiphase.torch.optimizers import PRIVATE_OPTIMIZERS
from antiphase.torch.user_warnings import warn

OPACUS_ARGUMENTS = (
    "module", "optimizer", "criterion", "data_loader", "noise_multiplier", "max_grad_norm",
    "batch_first", "loss_reduction", "clipping", "noise_generator", "grad_sample_mode",
    "wrap_model", "rand_on_empty",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Request:
    """Arguments of `PrivacyEngine.make_private`, which documents them."""

    module: nn.Module
    optimizer: Any
    criterion: Any
    data_loader: Any
    noise_multiplier: float | None
    max_grad_norm: float | list[float]
    batch_first: bool
    loss_reduction: str
    poisson_sampling: bool | None
    clipping: str
    noise_generator: Any
    grad_sample_mode: str
    wrap_model: bool
    rand_on_empty: bool
    epochs: int | None
    steps: int | None
    scheduler: Any
    scheduler_every: str
    gradient_accumulation_steps: int
    participation: Participation | str | None
    target_epsilon: float | None
    target_delta: float | None
    memory: str | int
    probe: bool
    probe_inputs: Callable[[int], Any] | None
    uncovered: str
    progress: bool
    extra: dict[str, Any]  # arguments that Opacus may know and we do not

    @property
    def has_length(self) -> bool:
        """Whether the length of the training is given."""
        return self.epochs is not None or self.steps is not None

    @property
    def is_trusted(self) -> bool:
        """Whether the user vouches for who takes part in which step."""
        return self.participation == "trusted"

    @property
    def is_ghost(self) -> bool:
        """Whether examples are clipped by ghost clipping."""
        return self.grad_sample_mode in ("ghost", "ghost_fsdp")

    @property
    def inner_optimizer(self) -> Any:
        """The user's optimizer, also if an earlier `make_private` wrapped it."""
        return getattr(self.optimizer, "original_optimizer", self.optimizer)

    @property
    def for_opacus(self) -> dict[str, Any]:
        """The arguments that Opacus' `make_private` takes."""
        return {name: getattr(self, name) for name in OPACUS_ARGUMENTS} | self.extra

    def refuse_unplanned_arguments(self) -> None:
        """Refuse arguments of Opacus that the privacy of a planned mechanism does not cover.

        Raises:
            ValueError: if an argument has a value that is not supported.
            TypeError: if an argument is not known.
        """
        if self.poisson_sampling:
            # PRIVACY: Poisson samples amplify correlated noise only if analysed for it.   [G9]
            raise ValueError(
                "poisson_sampling = True: plain Poisson samples amplify independent noise alone. "
                'Use mechanism="dp-sgd", or a mechanism of few bands (antiphase.select_bands) '
                "with the batches of antiphase.torch.batch_sampler_for"
            )
        if self.noise_generator is not None:
            raise ValueError(
                "noise_generator: the noise comes from a secret key, never from a generator. For "
                "repeatable studies: PrivacyEngine(key=Key.insecure(seed))"
            )
        if self.clipping == "adaptive":
            raise ValueError(
                "clipping = 'adaptive': clip norms that follow the data cost privacy that this "
                "plan does not account for. Use clipping='flat' or 'per_layer'"
            )
        mode = self.grad_sample_mode
        check.choice(
            "grad_sample_mode", mode, tuple(dict.fromkeys(m for m, _ in PRIVATE_OPTIMIZERS))
        )
        if (mode, self.clipping) not in PRIVATE_OPTIMIZERS:
            raise ValueError(
                f"grad_sample_mode = {mode!r} with clipping = {self.clipping!r} is not supported: "
                "ghost clipping has no norms of single tensors. Use clipping='flat', or "
                "grad_sample_mode='hooks'"
            )
        if self.extra:
            raise unknown_argument(self.extra)
        warn_of_large_delta(self.target_delta, self.data_loader)
        warn_of_examples_left_out(self.data_loader)


def warn_of_large_delta(delta: float | None, data_loader: Any) -> None:
    """Warn of a δ at which publishing one whole record would be private."""
    dataset: Any = getattr(data_loader, "dataset", None)
    if delta is not None and hasattr(dataset, "__len__") and delta * len(dataset) >= 1:
        warn(
            f"target_delta = {delta:g} with {len(dataset):,} records: publishing one whole record "
            "would satisfy this guarantee. Take a δ far below one over the number of records"
        )


def warn_of_examples_left_out(data_loader: Any) -> None:
    """Warn if the last batch is dropped, which in a fixed order is the same one every time."""
    if not data_loader.drop_last or not data_loader.batch_size:
        return
    examples = len(data_loader.dataset)
    left_out = examples % data_loader.batch_size
    if left_out and isinstance(data_loader.sampler, RandomSampler | SequentialSampler):
        warn(
            f"drop_last = True: batches are the same in every epoch, so the same {left_out} of "
            f"{examples} examples are never trained on. Use drop_last=False"
        )


def unknown_argument(names: Iterable[str]) -> TypeError:
    """The error for arguments that `make_private` does not have."""
    name = min(names)
    known = [field for field in Request.__dataclass_fields__ if field != "extra"]
    return TypeError(
        f"{name}: make_private has no such argument for this mechanism"
        f"{check.suggestion(name, known)}"
    )
