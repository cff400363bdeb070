"""What a chart shows, as values: no drawing here. `report.figures` and `report.page` draw the same charts.

Every builder says its units in the axis labels. Noise is a standard deviation per coordinate, at noise multiplier 1 and
clip norm 1, so that all mechanisms in a chart are equally private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase.errors import TooLargeError
from antiphase.factorizations.base import Factorization

MAX_STEPS = 4096  # of a spectrum or a heat map, which need the T × T matrix
NON_PRIVATE = "non-private"  # the name of what is trained without noise


@dataclass(frozen=True, eq=False)
class Series:
    """One curve. ``name`` is the mechanism's, and gives the colour; ``error`` is half the length of the error bars.

    Points that are not finite are gaps in the curve. Without ``line`` there are only marks with their error bars, or,
    without ``points`` too, the band of the errors: these belong to another curve, and have no label of their own.
    """

    name: str
    label: str
    x: Array
    y: Array
    error: Array | None = None
    dashed: bool = False
    line: bool = True
    points: bool = True

    def __post_init__(self) -> None:
        for field in ("x", "y", "error"):
            value = getattr(self, field)
            if value is not None:
                array = np.array(value, dtype=np.float64)
                if array.ndim != 1 or array.shape != np.shape(self.x):
                    raise ValueError(
                        f"{field} of {self.label!r} has shape {array.shape}; x has {np.shape(self.x)}"
                    )
                array.setflags(write=False)
                object.__setattr__(self, field, array)
        if (np.diff(self.x) < 0).any():
            raise ValueError(f"x of {self.label!r} goes back: sort the points of a curve by x")


@dataclass(frozen=True)
class Region:
    """A stretch of the x axis of which a word is to be said."""

    low: float
    high: float
    label: str


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves over one pair of axes. ``alt`` is what a screen reader says; empty, it is made from the values."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    alt: str = ""
    note: str = ""
    regions: Sequence[Region] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", tuple(self.series))
        object.__setattr__(self, "regions", tuple(self.regions))
        object.__setattr__(self, "alt", self.alt or _lines_in_words(self))


@dataclass(frozen=True, eq=False)
class HeatMaps:
    """Matrices side by side, by label: above zero in one colour, below in another, zero as the ground."""

    title: str
    matrices: Mapping[str, Array]
    x_label: str
    y_label: str
    alt: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        matrices = {
            label: np.array(matrix, dtype=np.float64) for label, matrix in self.matrices.items()
        }
        for label, matrix in matrices.items():
            if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
                raise ValueError(
                    f"{label!r} has shape {matrix.shape}; a heat map is of a finite matrix"
                )
            matrix.setflags(write=False)
        object.__setattr__(self, "matrices", matrices)
        object.__setattr__(self, "alt", self.alt or _maps_in_words(self))


Chart = Lines | HeatMaps
Designs = Mapping[str, tuple[str, Factorization]]  # label → (mechanism's name, design)


# ---- builders: from designs ------------------------------------------------------------------------------------


def noise_per_iterate(
    designs: Mapping[str, tuple[str, Factorization | Sequence[float] | Array]],
    title: str = "Noise that stays in the model, at equal privacy",
) -> Lines:
    """The standard deviation of the noise inside each iterate, at noise multiplier and clip norm 1.

    ``designs`` maps a label to (mechanism's name, design), or to (name, standard deviations) where they are known.
    """
    series = []
    for label, (name, design) in designs.items():
        deviation = (
            np.sqrt(design.noise_per_iterate)
            if isinstance(design, Factorization)
            else np.asarray(design)
        )
        series.append(Series(name, label, np.arange(1.0, len(deviation) + 1), deviation))
    return Lines(
        title,
        "step",
        "noise in the iterate (standard deviation per coordinate, in clip norms)",
        series,
        log_y=True,
        note="At noise multiplier 1: multiply by the noise multiplier, which equal privacy makes the same for all.",
    )


def noise_spectrum(
    designs: Designs, title: str = "Where the noise goes: its power by frequency"
) -> Lines:
    """The power of the noise that the steps add, by frequency: the expected periodogram of ``sens(C)·C⁻¹Z``.

    Its mean over all frequencies is the mean variance of a step's noise; that of DP-SGD is flat at sens².
    Raises `TooLargeError` beyond 4,096 steps.
    """
    return Lines(
        title,
        "frequency (cycles a step)",
        "power of the added noise (variance per coordinate, in squared clip norms)",
        [Series(name, label, *spectrum(f)) for label, (name, f) in designs.items()],
        log_y=True,
        note="Slow noise, on the left, adds up in the model; fast noise, on the right, cancels itself.",
    )


def spectrum(f: Factorization) -> tuple[Array, Array]:
    """``(frequencies, power)``: ``sens(C)²/T · Σ_j |Σ_i C⁻¹_ij e^(−2πi·f·i)|²`` for f = 0, 1/T, … up to 0.5."""
    _refuse_if_too_long(f)
    noising = f.noising()
    power = np.zeros(f.steps // 2 + 1)
    for start in range(0, f.steps, 256):  # in blocks of columns, so that the transforms stay small
        power += (np.abs(np.fft.rfft(noising[:, start : start + 256], axis=0)) ** 2).sum(axis=1)
    return np.arange(len(power)) / f.steps, f.sensitivity**2 / f.steps * power


def encoder_and_decoder(f: Factorization, title: str = "") -> HeatMaps:
    """The matrices of a design: ``C``, ``C⁻¹`` and ``B``, with ``A = B C``. `TooLargeError` beyond 4,096 steps."""
    _refuse_if_too_long(f)
    return HeatMaps(
        title or f"The matrices of {f.name}, {f.steps} steps",
        {
            "C, the encoder": f.encoder(),
            "C⁻¹, what step i adds": f.noising(),
            "B, what iterate i keeps": f.decoder(),
        },
        "noise of step j",
        "step i",
        note="Orange is above zero, blue below; colour grows with the square root of the size, so small values show.",
    )


def _refuse_if_too_long(f: Factorization) -> None:
    if f.steps > MAX_STEPS:
        raise TooLargeError(
            f"steps = {f.steps}: spectra and heat maps are drawn up to {MAX_STEPS} steps; leave it out"
        )


# ---- builders: from results --------------------------------------------------------------------------------------


def error_against_steps(
    points: Iterable[Mapping[str, Any]],
    title: str = "How the noise grows with the number of steps",
    y_label: str = "squared noise over the certified optimum (ratio)",
) -> Lines:
    """One point each: ``{"name", "label", "steps", "error"}``; points of one label make a curve."""
    groups = _grouped(points, "steps", "error")
    return Lines(
        title, "steps", y_label, [_averaged(*group) for group in groups], log_x=True, log_y=True
    )


def accuracy_against_epsilon(
    results: Iterable[Mapping[str, Any]], title: str = "Accuracy against privacy"
) -> Lines:
    """One run each: ``{"name", "label", "epsilon", "accuracy"}``, with accuracies in 0 … 1.

    Runs of one label and ε are averaged, with the standard error of the mean as error bars (none for a single run).
    Runs without noise have ``epsilon`` None or infinite, and are a dashed level line.
    """
    results = list(results)
    private = [r for r in results if r["epsilon"] is not None and math.isfinite(r["epsilon"])]
    series = [_averaged(*group, scale=100.0) for group in _grouped(private, "epsilon", "accuracy")]
    ends = sorted({float(r["epsilon"]) for r in private}) or [1.0]
    for name, label, runs in _grouped([r for r in results if r not in private], None, "accuracy"):
        level = _averaged(name, label, runs, scale=100.0)
        # A level has no ε of its own: it spans the others, and its error bars would only repeat.
        series.append(
            Series(name, label, np.array(ends), np.full(len(ends), level.y[0]), dashed=True)
        )
    seeds = max(
        (
            len(runs)
            for _, _, group in _grouped(private, "epsilon", "accuracy")
            for runs in group.values()
        ),
        default=0,
    )
    return Lines(
        title,
        "privacy budget ε (smaller is more private)",
        "accuracy on test data (%)",
        series,
        log_x=True,
        note=f"Means of up to {seeds} runs; bars are ± one standard error of the mean."
        if seeds > 1
        else "",
    )


def training_curves(
    results: Iterable[Mapping[str, Any]], title: str = "Accuracy while training"
) -> Lines:
    """One run each: ``{"name", "label", "steps": […], "accuracies": […]}``, accuracies in 0 … 1; averaged as above."""
    points = [
        {"name": r["name"], "label": r["label"], "steps": step, "accuracy": accuracy}
        for r in results
        for step, accuracy in zip(r["steps"], r["accuracies"], strict=True)
    ]
    series = [_averaged(*group, scale=100.0) for group in _grouped(points, "steps", "accuracy")]
    note = (
        "Means over runs, with ± one standard error."
        if any(s.error is not None for s in series)
        else ""
    )
    return Lines(title, "step", "accuracy on test data (%)", series, note=note)


def seconds_against_steps(
    curves: Mapping[str, tuple[str, Sequence[tuple[int, float]]]],
    title: str = "Time to design, against the steps",
) -> Lines:
    """``{label: (mechanism's name, [(steps, seconds), …])}``, with a dashed line that is proportional to the steps."""
    series = []
    for label, (name, points) in curves.items():
        steps, seconds = np.array(sorted(points), dtype=np.float64).T
        series.append(Series(name, label, steps, seconds))
    if series:
        first = series[0]
        straight = first.y[0] * first.x / first.x[0]
        series.append(Series("", "proportional to the steps", first.x, straight, dashed=True))
    return Lines(title, "steps", "time (seconds)", series, log_x=True, log_y=True)


def frontier(
    points: Mapping[str, tuple[str, float, float]], best: Sequence[str], title: str, x_label: str
) -> Lines:
    """``{label: (mechanism's name, cost, noise)}``: a mark each, and a dashed line below which there is nothing, along
    those whose labels are in ``best``. Marks without a finite cost are left out."""
    shown = {label: point for label, point in points.items() if math.isfinite(point[1])}
    series = [
        Series(name, label, np.array([x]), np.array([y])) for label, (name, x, y) in shown.items()
    ]
    steps = sorted((x, y) for label, (_, x, y) in shown.items() if label in best)
    if steps:
        xs = [x for x, _ in steps] + [max(x for _, x, _ in shown.values())]
        ys = [y for _, y in steps]
        # A staircase: until the next one, the last one is the best there is.
        line = Series(
            "", "frontier", np.repeat(xs, 2)[1:-1], np.repeat(ys, 2), dashed=True, points=False
        )
        series.append(line)
    return Lines(
        title,
        x_label,
        "noise in the average iterate (standard deviation per coordinate, in clip norms)",
        series,
        log_x=True,
        log_y=True,
        note="On the dashed line: no other has as little noise at as little cost.",
    )


def roc(
    found: Array,
    least_misses: Callable[[Array], Array],
    promise: str,
    title: str = "Found by an audit, and allowed",
) -> Lines:
    """Hits against false alarms: ``found`` has a row for each threshold; ``least_misses`` is the promised curve."""
    alarms = np.linspace(0, 1, 201)
    return Lines(
        title,
        "false alarms (share of trials without the canary)",
        "hits (share of trials with it)",
        [
            Series("dp-mf+", "found", found[:, 0], found[:, 1], points=False),
            Series("", "allowed", alarms, 1 - least_misses(alarms), dashed=True, points=False),
        ],
        note=f"Claimed: {promise}. Well above what it allows, the claim is false.",
    )


Group = tuple[str, str, dict[float, list[float]]]


def _grouped(points: Iterable[Mapping[str, Any]], x: str | None, y: str) -> list[Group]:
    """(name, label, {x: values}) for each label, in the order in which they first appear."""
    groups: dict[str, Group] = {}
    for point in points:
        _, _, values = groups.setdefault(point["label"], (point["name"], point["label"], {}))
        values.setdefault(float(point[x]) if x else 0.0, []).append(float(point[y]))
    return list(groups.values())


def _averaged(
    name: str, label: str, values: dict[float, list[float]], scale: float = 1.0
) -> Series:
    """The mean at each x; and its standard error, where there is more than one value."""
    xs = sorted(values)
    runs = [scale * np.array(values[x]) for x in xs]
    error = [r.std(ddof=1) / math.sqrt(len(r)) if len(r) > 1 else 0.0 for r in runs]
    several = any(len(r) > 1 for r in runs)
    return Series(
        name,
        label,
        np.array(xs),
        np.array([r.mean() for r in runs]),
        np.array(error) if several else None,
    )


# ---- in words --------------------------------------------------------------------------------------------------


def _lines_in_words(chart: Lines) -> str:
    words = [f"Line chart: {chart.y_label} against {chart.x_label}."]
    for s in chart.series:
        fine = np.isfinite(s.x) & np.isfinite(s.y)
        if fine.any():
            x, y = s.x[fine], s.y[fine]
            low, high = f"{y.min():.3g}", f"{y.max():.3g}"
            extent = (
                f"stays at {low}"
                if low == high
                else f"between {low} and {high}, at {x[-1]:g} it is {y[-1]:.3g}"
            )
            words.append(f"{s.label}: {extent}.")
    words += [f"From {r.low:g} to {r.high:g}: {r.label}." for r in chart.regions]
    return " ".join(words)


def _maps_in_words(chart: HeatMaps) -> str:
    words = [f"Heat maps: {chart.y_label} downwards, {chart.x_label} to the right."]
    return " ".join(
        words + [matrix_in_words(label, matrix) for label, matrix in chart.matrices.items()]
    )


def matrix_in_words(label: str, matrix: Array) -> str:
    rows, columns = matrix.shape
    return f"{label}: {rows} by {columns}, values from {matrix.min():.3g} to {matrix.max():.3g}."
