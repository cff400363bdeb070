"""Train a model from a recipe and a data set, as ``antiphase train`` does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from antiphase._util import checks as check
from antiphase._util.interrupts import graceful_interrupt
from antiphase._util.progress import Progress, ProgressReport
from antiphase.data import Dataset
from antiphase.torch import run_directory
from antiphase.torch.recipe import Outcome, Recipe
from antiphase.torch.training_run import TrainingRun

# Numbers in the gradients of a batch; below, waking a second thread takes longer than the work.
MAX_SINGLE_THREAD_WORK = 1 << 20


def train(
    recipe: Recipe,
    dataset: Dataset,
    *,
    seed: int = 0,
    insecure_noise: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Train as ``recipe`` says on a data set of `antiphase.data`.

    The global generators are left as they were. The test set is evaluated as asked; the training
    data are seen only by their noisy gradients.

    Args:
        recipe: all choices.
        dataset: training and test data.
        seed: of the first weights, the order of the batches and dropout; never of the noise or of
            Poisson samples, which come from a new secret key.
        insecure_noise: makes noise and samples a function of it and of ``seed``, for studies; the
            statement says so.
        checkpoint: directory of the run, which keeps its key, its state (at least every epoch, and
            on Ctrl-C), and at the end ``model.safetensors``.
        resume: whether to go on with the run in ``checkpoint``, which must be this one. It ends
            with the same weights, bit for bit, as if it had not stopped.
        evaluate: steps from one evaluation on the test set to the next; always at the end.
        progress: called during the design, whose reports have the ``task`` "designing" and a
            ``gap``, and after every step, with the newest accuracy and loss as ``metrics``.

    Returns:
        Accuracy, weights and privacy statement.

    Raises:
        ValueError: if an argument is not allowed, or ``checkpoint`` has another run.
        TypeError: if ``resume`` is given without ``checkpoint``.
        FileExistsError: if ``checkpoint`` is not empty and ``resume`` is False.
        FileNotFoundError: if there is no run to resume.
        FileFormatError: if a file of the run is damaged.
        StateError: if steps were released and their checkpoint is missing.
        KeyboardInterrupt: on Ctrl-C, after the run was saved.

    Example:
        >>> from antiphase import data
        >>> recipe = Recipe(epochs=1, batch_size=64, learning_rate=0.5, mechanism="none")
        >>> train(recipe, data.load("digits")).accuracy > 0.5
        True
    """
    seed = check.whole_number("seed", seed, minimum=0)
    evaluate = None if evaluate is None else check.whole_number("evaluate", evaluate)
    recipe.require_fit(len(dataset.train))
    directory = None if checkpoint is None else Path(checkpoint)
    if resume and directory is None:
        raise TypeError("resume = True needs checkpoint: the folder of the run to go on with")
    if directory is not None:
        if not recipe.is_planned:
            raise ValueError(
                f"mechanism = {recipe.name!r} keeps no checkpoints here; leave checkpoint out"
            )
        identity = _identity(recipe, dataset, seed, insecure_noise)
        run_directory.refuse_another_run(directory, resume, identity)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        key = run_directory.load_or_generate_key(directory, insecure_noise)
        run = TrainingRun(recipe, dataset, seed, key, directory, progress)
        if directory is not None:
            run_directory.create(directory, run.key, identity)
            run.restore()
        with _few_threads(run.batch_work):
            _run_steps(run, evaluate, progress)
        run.save()
        return run.outcome()


def _run_steps(run: TrainingRun, evaluate: int | None, progress: Progress | None) -> None:
    """Do the steps that are left; on Ctrl-C save the run and raise."""
    with graceful_interrupt(run.directory is not None) as interrupted:
        for batch in itertools.islice(_repeated(run.loader), run.steps - run.done):
            run.step(*batch)
            if evaluate is not None and run.done % evaluate == 0:
                run.evaluate()
            if run.done % run.save_every == 0:
                run.save()
            try:
                if progress is not None:
                    progress(
                        ProgressReport(run.done, run.steps, task="training", metrics=run.latest())
                    )
                if interrupted():
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                run.save()
                raise
        run.evaluate()


def _repeated(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _identity(
    recipe: Recipe, dataset: Dataset, seed: int, insecure_noise: int | None
) -> dict[str, Any]:
    """What makes a run this one, as JSON has it."""
    identity = recipe.to_dict() | {
        "data": dataset.name,
        "data digest": dataset.digest,
        "seed": seed,
        "insecure_noise": insecure_noise,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


@contextlib.contextmanager
def _few_threads(work: int) -> Iterator[None]:
    """One thread for small models: faster, many times so on a busy machine."""
    before = torch.get_num_threads()
    if work < MAX_SINGLE_THREAD_WORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
