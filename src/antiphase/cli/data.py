"""``antiphase data``: the data sets that are known by name."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli import console
from antiphase.cli.console import Json, Quiet
from antiphase.cli.train import Folder, load


def data(
    name: Annotated[
        str,
        typer.Argument(help="digits, mnist, fashion-mnist, cifar10; or your folder, .npz or .csv."),
    ],
    folder: Folder = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Get a data set, check it, and say what is in it.

    NAME is digits, mnist, fashion-mnist or cifar10; or your own folder of images, .npz or .csv.

    Example: antiphase data digits
    """
    found = load(name, folder, quiet or as_json)
    x = found.train.inputs
    axes = tuple(i for i in range(x.ndim) if x.ndim < 3 or i != 1)
    mean, deviation = (
        [float(v) for v in getattr(x, what)(axis=axes, dtype="float64").reshape(-1)]
        for what in ("mean", "std")
    )
    if as_json:
        console.print_json(
            {
                "name": found.name,
                "train": len(found.train),
                "test": len(found.test),
                "shape": list(found.shape),
                "classes": list(found.classes),
                "mean": mean,
                "std": deviation,
                "digest": found.digest,
            }
        )
        return
    shown = ", ".join(found.classes[:10]) + (", …" if len(found.classes) > 10 else "")
    console.show(
        console.facts(
            {
                "data": found.name,
                "examples": f"{len(found.train):,} to train, {len(found.test):,} to test",
                "inputs": " × ".join(map(str, found.shape)),
                "classes": f"{len(found.classes)}: {shown}",
                "mean": ", ".join(f"{v:.4f}" for v in mean),
                "deviation": ", ".join(f"{v:.4f}" for v in deviation),
                "digest": f"{found.digest[:16]}…",
            }
        )
    )
