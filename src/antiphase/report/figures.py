"""Figures drawn from data: the same colour for the same mechanism everywhere, safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

# Okabe and Ito's palette; the order within it is ours, and fixed.
COLOURS = {
    "dp-sgd": "#000000",
    "anti-pgd": "#999999",
    "chess": "#CC79A7",
    "tree": "#E69F00",
    "sqrt-toeplitz": "#56B4E9",
    "fourier": "#F0E442",
    "dp-mf": "#0072B2",
    "dp-mf+": "#D55E00",
    "damped": "#009E73",
    "curvature": "#7A4FB5",
}
STYLE: Any = {"font.size": 13, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


def noise_per_iterate(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """The standard deviation of the noise inside each iterate, one curve a mechanism. Writes .png and .svg."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9, 5.2), layout="constrained")
        for row in sorted(rows, key=lambda r: -r["deviation"][-1]):
            steps = np.arange(1, len(row["deviation"]) + 1)
            colour = COLOURS.get(row["name"], "#444444")
            axes.plot(steps, row["deviation"], color=colour, label=row["label"], linewidth=1.8)
        axes.set(yscale="log", xlabel="step", ylabel="noise in the iterate\n(standard deviation)")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title, loc="left", fontsize=13)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=11)
        _save(figure, path)


def times(path: Path, curves: Mapping[str, Sequence[tuple[int, float]]], title: str) -> None:
    """Seconds against steps, both logarithmic, one curve a name, beside a line of slope 1. Writes .png and .svg."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        for name, points in curves.items():
            steps, seconds = (np.array(values, dtype=float) for values in zip(*points, strict=True))
            axes.plot(steps, seconds, "o-", color=COLOURS.get(name, "#444444"), label=name, linewidth=1.8)
            axes.plot(steps, seconds[0] * steps / steps[0], "--", color="#999999", label="proportional to the steps")
        axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="time (seconds)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(title, loc="left", fontsize=13)
        axes.legend(loc="upper left")
        _save(figure, path)


def heat_maps(path: Path, matrices: Mapping[str, Any], title: str) -> None:
    """Matrices side by side, red above zero and blue below, white at zero. Writes .png and .svg."""
    with plt.rc_context(STYLE):
        figure, all_axes = plt.subplots(
            1, len(matrices), figsize=(4.6 * len(matrices), 4.6), layout="constrained", squeeze=False
        )
        for axes, (name, matrix) in zip(all_axes[0], matrices.items(), strict=True):
            matrix = np.asarray(matrix)
            limit = float(np.abs(matrix).max())
            image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            axes.set_title(name, fontsize=13)
            axes.set(xlabel="step of the noise", ylabel="iterate", xticks=[], yticks=[])
            figure.colorbar(image, ax=axes, shrink=0.8)
        figure.suptitle(title, fontsize=13)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=160)
    plt.close(figure)
