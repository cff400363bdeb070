"""Save and resume private trainings, in files that run no code."""

from __future__ import annotations

import copy
from typing import Any

import torch

from antiphase._util import files
from antiphase.errors import FileFormatError, KeyFileError, ParticipationError, StateError
from antiphase.factorizations.base import MALFORMED
from antiphase.torch.batch_selection import ResumableBatches
from antiphase.torch.release import Release
from antiphase.torch.sharding import is_shard
from antiphase.torch.tensor_packing import pack, unpack, with_arrays, with_tensors
from antiphase.torch.user_warnings import warn
from antiphase.torch.wrapping import PrivateTraining

REFUSALS = (FileFormatError, KeyFileError, StateError, ParticipationError)


def save(
    training: PrivateTraining,
    path: Any,
    module: Any,
    optimizer: Any,
    scheduler: Any,
    extra: dict[str, Any],
) -> None:
    """Write everything that is needed to resume, but the key.

    Args:
        training: has ledgers, position and the order of batches.
        path: of the file; process r > 0 adds ``.r``.
        module: whose parameters and buffers are kept.
        optimizer: whose state is kept, or None.
        scheduler: whose state is kept, or None.
        extra: plain values and tensors of the user's.

    Raises:
        TypeError: if ``extra`` or a state holds other values.
    """
    release, tensors = training.release, dict[str, Any]()
    content = {
        "what": "checkpoint",
        "module": pack(module.state_dict(), tensors),
        "optimizer": None if optimizer is None else pack(optimizer.state_dict(), tensors),
        "scheduler": None if scheduler is None else pack(scheduler.state_dict(), tensors),
        "random": pack(torch.get_rng_state(), tensors),
        "release": pack(release.state(), tensors),
        "order": pack(_batch_order(release), tensors),
        "more": pack(extra, tensors),
        "tensors": tensors,
    }
    # PRIVACY: it says who took part, and with sampled batches who will.   [G11]
    files.write(_path_of_process(path, release), content, secret=True)


def load(
    training: PrivateTraining,
    path: Any,
    module: Any,
    optimizer: Any,
    scheduler: Any,
    *,
    fresh_noise: bool,
) -> dict[str, Any]:
    """Resume from a file of `save`.

    Guarantee: the file is checked against its digest before anything is changed, and nothing in it
    is executed.   [G6]

    Args:
        training: made by the same arguments.
        path: of the file.
        module: gets the parameters and buffers that were saved.
        optimizer: gets the state that was saved, or None.
        scheduler: gets the state that was saved, or None.
        fresh_noise: whether the steps after it get noise of a new run, a second release.

    Returns:
        What `save` was given as ``extra``.

    Raises:
        FileFormatError: if the file is damaged, or of another model.
        StateError: if it is of another mechanism, process or run.
        KeyFileError: if it is of another key, or there is no record of its releases.
        ParticipationError: if the ledger is of other data.
    """
    path = _path_of_process(path, training.release)
    content = files.read(path)
    try:
        if content["what"] != "checkpoint":
            raise FileFormatError(f"{path}: holds a {content['what']!r}, not a checkpoint")
        tensors = content["tensors"]
        like = next(filter(is_shard, module.parameters()), None)

        def restored(name: str) -> Any:
            return unpack(content[name], tensors, like)

        extra: dict[str, Any] = restored("more")
        resume(training, restored("release"), restored("order"), fresh_noise=fresh_noise)
        try:
            module.load_state_dict(restored("module"))
        except RuntimeError as error:  # torch's, for names and shapes that are not the model's
            raise FileFormatError(f"{path}: is of another model ({error})") from error
        if optimizer is not None and content["optimizer"] is not None:
            optimizer.load_state_dict(restored("optimizer"))
        if scheduler is not None and content["scheduler"] is not None:
            scheduler.load_state_dict(restored("scheduler"))
        torch.set_rng_state(restored("random"))
        return extra
    except REFUSALS:
        raise
    except MALFORMED as error:
        raise FileFormatError(f"{path}: not a valid checkpoint ({error})") from error


def state_dict(training: PrivateTraining) -> dict[str, Any]:
    """Position in the noise, ledger, order of batches and torch's generator, as tensors."""
    state: dict[str, Any] = with_tensors(
        {
            "release": training.release.state(),
            "order": _batch_order(training.release),
            "random": torch.get_rng_state(),
        }
    )
    return state


def load_state_dict(training: PrivateTraining, state: dict[str, Any], *, fresh_noise: bool) -> None:
    """Resume from what `state_dict` returned.

    Raises:
        StateError: if it is not the state of an engine, or of another mechanism, process or run.
        KeyFileError: if it is of another key, or there is no record of its releases.
        ParticipationError: if the ledger is of other data.
    """
    try:
        arrays = with_arrays(state)
        torch.Generator().set_state(state["random"])  # raises before anything is changed
        resume(training, arrays["release"], arrays["order"], fresh_noise=fresh_noise)
        torch.set_rng_state(state["random"])
    except REFUSALS:
        raise
    except (*MALFORMED, RuntimeError) as error:
        raise StateError(f"this is not the state of an engine ({error})") from error


def resume(training: PrivateTraining, state: Any, order: Any, *, fresh_noise: bool) -> None:
    """Go to the place in noise and batches where ``state`` and ``order`` were taken.

    Args:
        training: made by the same arguments.
        state: of the release.
        order: of the batches.
        fresh_noise: whether the steps after it get noise of a new run.

    Raises:
        StateError: if state or order are of another training; nothing was changed then.
    """
    release, plan = training.release, training.plan
    sampler = _resumable(release)
    if sampler is not None:
        copy.copy(sampler).restore(order, step=0, batch=0)  # raises before anything is changed
    release.restore(state, fresh_noise)
    if sampler is not None:
        step = release.position
        batch = step % plan.steps_per_epoch * plan.accumulation
        sampler.restore(order, step=step, batch=batch)
        training.frozen_settings.accept_sampler()


def take_scheduler(options: dict[str, Any]) -> Any:
    """The scheduler among further arguments; Opacus' others do not apply.

    Raises:
        TypeError: if another argument is given.
    """
    scheduler = options.pop("scheduler", None)
    given = sorted(name for name, value in options.items() if value is not None)
    if given:
        raise TypeError(
            f"{given}: a checkpoint of a planned mechanism takes module, optimizer, scheduler and "
            "checkpoint_dict"
        )
    return scheduler


def warn_of_lost_key(release: Release) -> None:
    """Warn that no other process can resume from a checkpoint whose key is in memory alone."""
    if release.key.path is None and not release.key.is_insecure:
        warn(
            "save_checkpoint: the key of this run is in memory alone, so no other process can "
            'resume it. Keep the key in a file: PrivacyEngine(key="path") creates or loads it'
        )


def _resumable(release: Release) -> ResumableBatches | None:
    return None if release.batches is None else release.batches.resumable


def _batch_order(release: Release) -> Any:
    sampler = _resumable(release)
    return None if sampler is None else sampler.state()


def _path_of_process(path: Any, release: Release) -> Any:
    """Each process has a ledger and random state of its own, and so a file of its own."""
    return f"{path}.{release.group.rank}" if release.group.rank else path
