"""``antiphase data``: download, check and describe a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from antiphase import data as data_sets
from antiphase._util.progress import ProgressReport
from antiphase.cli import options, output
from antiphase.cli.progress import progress_bars


def data(
    name: Annotated[str, Argument(help=options.DATA_HELP)],
    *,
    folder: options.DataFolder = None,
    display: options.Display,
) -> None:
    """Download, check and describe a data set.

    NAME is digits, mnist, fashion-mnist or cifar10; or your own folder of images, .npz or .csv.

    Example: antiphase data digits
    """
    dataset = load_data(name, folder, display.silent)
    mean, deviation = _channel_statistics(dataset.train.inputs)
    if display.as_json:
        output.print_json(
            {
                "name": dataset.name,
                "train": len(dataset.train),
                "test": len(dataset.test),
                "shape": dataset.shape,
                "classes": dataset.classes,
                "mean": mean,
                "std": deviation,
                "digest": dataset.digest,
            }
        )
        return
    count = len(dataset.classes)
    first_classes = ", ".join(dataset.classes[:10]) + (", …" if count > 10 else "")
    output.print_facts(
        {
            "data": dataset.name,
            "examples": f"{len(dataset.train):,} to train, {len(dataset.test):,} to test",
            "inputs": " × ".join(map(str, dataset.shape)),
            "classes": f"{count}: {first_classes}",
            "mean": ", ".join(f"{value:.4f}" for value in mean),
            "deviation": ", ".join(f"{value:.4f}" for value in deviation),
            "digest": f"{dataset.digest[:16]}…",
        }
    )


def load_data(name: str, folder: Path | None, silent: bool) -> Any:
    """Load a data set, with a progress bar for each download."""
    with progress_bars(silent) as progress:
        tasks: dict[str, Any] = {}

        def report(now: ProgressReport) -> None:
            if now.task not in tasks:
                tasks[now.task] = progress.add_task(now.task, total=now.total)
            progress.update(tasks[now.task], completed=now.done, total=now.total)

        return data_sets.load(name, folder=folder, progress=report)


def _channel_statistics(inputs: Any) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of images, or of all inputs."""
    axes = tuple(i for i in range(inputs.ndim) if inputs.ndim < 3 or i != 1)
    mean, deviation = (
        [float(v) for v in compute(axis=axes, dtype="float64").reshape(-1)]
        for compute in (inputs.mean, inputs.std)
    )
    return mean, deviation
