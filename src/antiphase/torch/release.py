"""Where noise meets the gradient: noisy sums of clipped gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from antiphase.errors import HorizonError, ParticipationError, StateError
from antiphase.ledger.participation import ParticipationLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.torch.noise_run import NoiseRun
from antiphase.torch.recorded_loader import RecordedBatches
from antiphase.torch.sharding import is_shard, local_part

Tensor = torch.Tensor


class Release(NoiseRun):
    """Adds noise to the sum of clipped gradients of each step, and nothing else does.

    In this order: every guard agrees, the plan has a row left, the examples may take part, the sum
    is written ahead; then the row is drawn and added.

    Guarantee: a step is refused before a row is drawn or a ledger changed.   [G14]

    Args:
        mechanism: the calibrated mechanism.
        key: the secret that the noise is made from.
        shapes: the shape of each tensor, by name.
        divisor: the public number that noisy sums are divided by.
        batches: records which examples are in a step; None if participation is trusted.
        ledger: counts who takes part; None if participation is trusted.
        max_batch_size: the largest batch, all processes together.
        accumulation: batches of one step, as planned.
        options: arguments of `NoiseRun`.

    Attributes:
        guards: called before each step, before anything is drawn or recorded; a guard raises to
            refuse the step.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        key: Key,
        shapes: dict[str, tuple[int, ...]],
        divisor: float,
        *,
        batches: RecordedBatches | None,
        ledger: ParticipationLedger | None,
        max_batch_size: int,
        accumulation: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(mechanism, key, shapes, **options)
        self.divisor, self.max_batch_size = divisor, max_batch_size
        self.batches, self.ledger, self._accumulation = batches, ledger, accumulation
        self.guards: list[Callable[[], None]] = []
        self._void = ""  # why nothing may be released any more

    def void(self, reason: str) -> None:
        """Refuse every step from now on."""
        self._void = reason

    def __call__(self, sums: list[Tensor], examples: int) -> list[Tensor]:
        """Release the sums of one step.

        Args:
            sums: of the clipped gradients, in the order of ``shapes``.
            examples: how many examples the sums have.

        Returns:
            The sums with noise, divided by the public divisor; float32, whatever the sums are.

        Raises:
            AntiphaseError: if the step is refused; nothing was released then.
        """
        self._refuse_step()
        indices = self._examples_of_step(examples)
        parts = [local_part(total.detach()) for total in sums]
        # PRIVACY: noise is float32; digits of a float64 sum below that would have no noise.   [G16]
        parts = [total.to(torch.float32) for total in parts]
        arrays = [total.cpu().contiguous().numpy() for total in parts]
        step = self.position
        row = self._next_row(arrays)
        if self.ledger is not None and indices is not None:
            self.ledger.record(step, indices)
        noisy = []
        for name, total, array in zip(self.shapes, parts, arrays, strict=True):
            # PRIVACY: added in float32; in bfloat16 small noise would vanish.   [G16]
            # By NumPy, since torch would wake all its threads to add two rows.
            out = (
                np.asarray(array + row[name].reshape(array.shape)) if name in row else array.copy()
            )
            noisy.append(torch.from_numpy(out).to(total.device))
        return [_divided(total, self.divisor) for total in self.group.summed(noisy, sums)]

    def _refuse_step(self) -> None:
        """Raise unless the guards agree and the plan has a step left."""
        # PRIVACY: a plan that another one replaced is accounted for nowhere.   [G15]
        if self._void:
            raise StateError(f"this optimizer is void: {self._void}. Nothing was released")
        # PRIVACY: whatever the promise rests on is as it was, or nothing goes out.   [G16]
        for guard in self.guards:
            guard()
        if self.run is None:
            self.begin()
        if self.remaining <= 0:
            # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
            raise HorizonError(
                f"all {self.mechanism.steps} steps of the plan are done. Nothing was released. "
                "Plan for as many steps as training takes: make_private(…, epochs=…) or steps=…"
            )

    def _examples_of_step(self, count: int) -> NDArray[np.int64] | None:
        """The indices of the examples of the step, or raise if they may not take part."""
        step = self.position
        indices = self.batches.take(count) if self.batches is not None else None
        if self.ledger is not None:
            if indices is None:
                raise ParticipationError(
                    f"step {step}: {count} gradients of examples that are not known. Nothing was "
                    "released. Take batches from the loader that make_private returned, whole and "
                    'one at a time; or vouch for them: participation="trusted"'
                )
            try:
                self.ledger.check(step, indices)
            except ParticipationError as error:
                raise self._explained(error) from error
        # PRIVACY: the rounding of sums is covered for so many examples, and no more.   [G16]
        if count > self.max_batch_size:
            raise self._explained(
                ParticipationError(
                    f"step {step}: {count} examples, and the rounding of sums is covered for "
                    f"{self.max_batch_size}. Nothing was released. Use a loader with that batch "
                    "size"
                )
            )
        return indices

    def _explained(self, error: ParticipationError) -> ParticipationError:
        """An error that names the cause, if the batches of the step tell it."""
        if self.batches is None or self.ledger is None:
            return error
        plan = self.ledger.participation
        every = plan.steps_per_epoch or self.mechanism.steps if plan.fixed_order else None
        departure = self.batches.departure(self.position, self._accumulation, every)
        if not departure:
            return error
        return ParticipationError(f"step {self.position}: {departure}. Nothing was released")

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint; neither key nor noise is in it."""
        return super().state() | {"ledger": {} if self.ledger is None else self.ledger.state()}

    def restore(self, state: dict[str, Any], fresh_noise: bool = False) -> None:
        """Go on where `state` was taken; with noise of a new run if asked.

        Args:
            state: what `state` returned.
            fresh_noise: whether the steps after it get noise of a new run, a second release.

        Raises:
            StateError: if the state is of another mechanism, process or run.
            KeyFileError: if the state is of another key, or there is no record of its releases.
            ParticipationError: if the ledger is of other data.
        """
        run = self._check_state(state, fresh_noise)
        if self.ledger is not None:
            self.ledger.restore(state["ledger"])
        self._resume(state, run, fresh_noise)


def _divided(total: Tensor, divisor: float) -> Tensor:
    if total.device.type != "cpu" or is_shard(total):
        return total.div_(divisor)
    array = total.numpy()
    array /= array.dtype.type(divisor)
    return total
