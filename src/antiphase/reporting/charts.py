"""Charts as data: curves and heat maps, and the builders that make them from results.

Nothing is drawn here: `figures` draws charts by Matplotlib, `page` in HTML. Axis labels state the
units. Noise is a standard deviation per coordinate at noise multiplier 1 and clip norm 1, so that
all mechanisms in a chart are equally private.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase.errors import TooLargeError
from antiphase.factorizations.base import Factorization

MAX_STEPS = 4096  # of spectra and heat maps, which need the T × T matrix
NON_PRIVATE = "non-private"  # name of training without noise, among names of mechanisms


@dataclass(frozen=True, eq=False)
class Series:
    """One curve.

    Attributes:
        name: name of the mechanism, which determines the colour.
        label: label of the curve.
        x: positions, in ascending order.
        y: values; those that are not finite are gaps in the curve.
        error: half the length of the error bars.
        dashed: whether the line is dashed and its points are not marked, as of a reference.
        sampled: whether batches are drawn at random, which a dashed line and diamonds show.
        line: whether points are joined. If not, they belong to another curve and have no label.
        points: whether points are marked, if they are few. Without line and points, only the band
            of the errors is drawn.
    """

    name: str
    label: str
    x: Array
    y: Array
    error: Array | None = None
    dashed: bool = False
    sampled: bool = False
    line: bool = True
    points: bool = True

    @property
    def marker(self) -> str:
        """Shape of its points: ``circle``, ``diamond``, or none if they are not marked."""
        if not self.points or (self.dashed and self.line):
            return ""
        return "diamond" if self.sampled else "circle"

    @property
    def is_single(self) -> bool:
        """Whether it is one point, which has its label beside it."""
        return self.line and self.marker != "" and len(self.x) == 1

    def __post_init__(self) -> None:
        for field in ("x", "y", "error"):
            value = getattr(self, field)
            if value is not None:
                array = np.array(value, dtype=np.float64)
                if array.ndim != 1 or array.shape != np.shape(self.x):
                    raise ValueError(
                        f"{field} of {self.label!r} has shape {array.shape}; x has "
                        f"{np.shape(self.x)}"
                    )
                array.setflags(write=False)
                object.__setattr__(self, field, array)
        if (np.diff(self.x) < 0).any():
            raise ValueError(f"x of {self.label!r} must be ascending: sort the points by x")


@dataclass(frozen=True)
class Region:
    """A labelled interval of the x axis."""

    low: float
    high: float
    label: str


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves over one pair of axes.

    Attributes:
        title: title of the chart.
        x_label: label of the x axis, with its unit.
        y_label: label of the y axis, with its unit.
        series: the curves.
        log_x: whether the x axis is logarithmic.
        log_y: whether the y axis is logarithmic.
        alt: description for screen readers; by default composed from the values.
        note: note below the chart.
        regions: labelled intervals of the x axis.
    """

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
        object.__setattr__(self, "alt", self.alt or _describe_lines(self))


@dataclass(frozen=True, eq=False)
class HeatMaps:
    """Matrices side by side: one colour above zero, another below it.

    Attributes:
        title: title of the chart.
        matrices: the matrices by label.
        x_label: label of the columns.
        y_label: label of the rows.
        alt: description for screen readers; by default composed from the values.
        note: note below the chart.
    """

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
                    f"{label!r} has shape {matrix.shape}; a heat map needs a finite matrix"
                )
            matrix.setflags(write=False)
        object.__setattr__(self, "matrices", matrices)
        object.__setattr__(self, "alt", self.alt or _describe_maps(self))


Chart = Lines | HeatMaps
Designs = Mapping[str, tuple[str, Factorization]]  # label → (mechanism's name, design)


def noise_per_iterate(
    designs: Mapping[str, tuple[str, Factorization | Sequence[float] | Array]],
    title: str = "Noise that stays in the model, at equal privacy",
) -> Lines:
    """Chart the standard deviation of the noise in each iterate.

    Args:
        designs: name of the mechanism and design by label; or name and standard deviations.
        title: title of the chart.
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
        note="At noise multiplier 1: multiply by the noise multiplier, which is the same for all "
        "mechanisms at equal privacy.",
    )


def noise_spectrum(
    designs: Designs, title: str = "Where the noise goes: its power by frequency"
) -> Lines:
    """Chart the power of the added noise by frequency: the periodogram of ``sens(C)·C⁻¹Z``.

    Its mean over all frequencies is the mean variance of a step's noise; for DP-SGD it is constant
    at sens².

    Args:
        designs: name of the mechanism and design by label.
        title: title of the chart.

    Raises:
        TooLargeError: a design has more than 4,096 steps.
    """
    return Lines(
        title,
        "frequency (cycles a step)",
        "power of the added noise (variance per coordinate, in squared clip norms)",
        [Series(name, label, *spectrum(f)) for label, (name, f) in designs.items()],
        log_y=True,
        note="Slow noise, on the left, adds up in the model; fast noise, on the right, cancels.",
    )


def spectrum(f: Factorization) -> tuple[Array, Array]:
    """Return frequencies and the power of the noise at each.

    The power is ``sens(C)²/T · Σ_j |Σ_i C⁻¹_ij e^(−2πi·f·i)|²`` for f = 0, 1/T, … up to 0.5.
    """
    _require_few_steps(f)
    noising = f.noising()
    power = np.zeros(f.steps // 2 + 1)
    for start in range(0, f.steps, 256):  # in blocks, to bound the memory
        power += (np.abs(np.fft.rfft(noising[:, start : start + 256], axis=0)) ** 2).sum(axis=1)
    return np.arange(len(power)) / f.steps, f.sensitivity**2 / f.steps * power


def encoder_and_decoder(f: Factorization, title: str = "") -> HeatMaps:
    """Chart the matrices ``C``, ``C⁻¹`` and ``B`` of a design, with ``A = B C``.

    Raises:
        TooLargeError: the design has more than 4,096 steps.
    """
    _require_few_steps(f)
    return HeatMaps(
        title or f"The matrices of {f.name}, {f.steps} steps",
        {
            "C, the encoder": f.encoder(),
            "C⁻¹, added in step i": f.noising(),
            "B, kept in iterate i": f.decoder(),
        },
        "noise of step j",
        "step i",
        note="Orange is above zero, blue below; the intensity is the square root of the magnitude, "
        "so that small values are visible.",
    )


def _require_few_steps(f: Factorization) -> None:
    if f.steps > MAX_STEPS:
        raise TooLargeError(
            f"steps = {f.steps}: spectra and heat maps are for at most {MAX_STEPS} steps; omit it"
        )


def accuracy_against_epsilon(
    results: Iterable[Mapping[str, Any]], title: str = "Accuracy against privacy"
) -> Lines:
    """Chart accuracy against ε.

    Runs of one label and ε are averaged; error bars are the standard error of the mean.

    Args:
        results: ``{"name", "label", "epsilon", "accuracy"}`` of each run, accuracies in 0 … 1.
            Runs without noise have ``epsilon`` None or infinite, and give a dashed level line.
            Runs on batches that are drawn at random have a true ``"sampled"``.
        title: title of the chart.
    """
    results = list(results)
    runs = [(r["name"], r["label"], r["epsilon"], 100.0 * r["accuracy"]) for r in results]
    private = [run for run in runs if run[2] is not None and math.isfinite(run[2])]
    others = [(run[0], run[1], 0.0, run[3]) for run in runs if run not in private]
    series = _with_samplers(_mean_curves(private), results)
    ends = np.array(sorted({float(epsilon) for _, _, epsilon, _ in private}) or [1.0])
    for level in _mean_curves(others):
        flat = np.full(len(ends), level.y[0])
        series.append(Series(level.name, level.label, ends, flat, dashed=True))
    seeds = max(Counter(run[1:3] for run in private).values(), default=0)
    note = f"Means of up to {seeds} runs; bars are ± one standard error of the mean."
    return Lines(
        title,
        "privacy budget ε (smaller is more private)",
        "accuracy on test data (%)",
        series,
        log_x=True,
        note=note if seeds > 1 else "",
    )


def training_curves(
    results: Iterable[Mapping[str, Any]], title: str = "Accuracy while training"
) -> Lines:
    """Chart accuracy during training, averaged over the runs of each label.

    Args:
        results: ``{"name", "label", "steps": […], "accuracies": […]}`` of each run, accuracies in
            0 … 1. Runs on batches that are drawn at random have a true ``"sampled"``.
        title: title of the chart.
    """
    results = list(results)
    points = [
        (r["name"], r["label"], step, 100.0 * accuracy)
        for r in results
        for step, accuracy in zip(r["steps"], r["accuracies"], strict=True)
    ]
    series = _with_samplers(_mean_curves(points), results)
    several = any(s.error is not None for s in series)
    note = "Means over runs, with ± one standard error." if several else ""
    return Lines(title, "step", "accuracy on test data (%)", series, note=note)


def frontier(
    points: Mapping[str, tuple[str, float, float]], best: Sequence[str], title: str, x_label: str
) -> Lines:
    """Chart noise against cost, with the Pareto frontier as a dashed staircase.

    Args:
        points: name of the mechanism, cost and noise, by label; infinite costs are left out.
        best: labels on the frontier.
        title: title of the chart.
        x_label: label of the cost, with its unit.
    """
    shown = {label: point for label, point in points.items() if math.isfinite(point[1])}
    series = [
        Series(name, label, np.array([x]), np.array([y])) for label, (name, x, y) in shown.items()
    ]
    steps = sorted((x, y) for label, (_, x, y) in shown.items() if label in best)
    if steps:
        xs = [x for x, _ in steps] + [max(x for _, x, _ in shown.values())]
        ys = [y for _, y in steps]
        # Between two points of the frontier, the cheaper one is the best.
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
    min_false_negatives: Callable[[Array], Array],
    claim: str,
    title: str = "Attack found by an audit, and the limit of the claim",
) -> Lines:
    """Chart the true against the false positive rates of an audit.

    Args:
        found: false and true positive rate, for each threshold.
        min_false_negatives: the claimed trade-off: least false negative rates for given false
            positive rates.
        claim: the claim in words.
        title: title of the chart.
    """
    rates = np.linspace(0, 1, 201)
    limit = 1 - min_false_negatives(rates)
    return Lines(
        title,
        "false positive rate (share of trials without the canary)",
        "true positive rate (share of trials with it)",
        [
            Series("dp-mf+", "found", found[:, 0], found[:, 1], points=False),
            Series("", "limit", rates, limit, dashed=True, points=False),
        ],
        note=f"Claim: {claim}. If the attack is well above the limit, the claim is false.",
    )


def _mean_curves(points: Iterable[tuple[str, str, Any, float]]) -> list[Series]:
    """Average points (name, label, x, y) of the same label and x, with their standard error."""
    groups: dict[tuple[str, str], dict[float, list[float]]] = {}
    for name, label, x, y in points:
        groups.setdefault((name, label), {}).setdefault(float(x), []).append(y)
    return [_mean_curve(*names, values) for names, values in groups.items()]


def _with_samplers(series: Iterable[Series], results: Iterable[Mapping[str, Any]]) -> list[Series]:
    sampled = {result["label"] for result in results if result.get("sampled")}
    return [replace(s, sampled=s.label in sampled) for s in series]


def _mean_curve(name: str, label: str, values: Mapping[float, Sequence[float]]) -> Series:
    xs = np.array(sorted(values))
    runs = [np.array(values[x]) for x in sorted(values)]
    error = None
    if any(len(run) > 1 for run in runs):
        error = np.array([r.std(ddof=1) / math.sqrt(len(r)) if len(r) > 1 else 0.0 for r in runs])
    means = np.array([run.mean() for run in runs])
    return Series(name, label, xs, means, error)


def _describe_lines(chart: Lines) -> str:
    sentences = [f"Line chart: {chart.y_label} against {chart.x_label}."]
    for s in chart.series:
        finite = np.isfinite(s.x) & np.isfinite(s.y)
        if finite.any():
            x, y = s.x[finite], s.y[finite]
            low, high = f"{y.min():.3g}", f"{y.max():.3g}"
            extent = f"between {low} and {high}, at {x[-1]:g} it is {y[-1]:.3g}"
            sentences.append(f"{s.label}: {f'constant at {low}' if low == high else extent}.")
    sentences += [f"From {r.low:g} to {r.high:g}: {r.label}." for r in chart.regions]
    return " ".join(sentences)


def _describe_maps(chart: HeatMaps) -> str:
    sentences = [f"Heat maps: {chart.y_label} downwards, {chart.x_label} to the right."]
    sentences += [describe_matrix(label, matrix) for label, matrix in chart.matrices.items()]
    return " ".join(sentences)


def describe_matrix(label: str, matrix: Array) -> str:
    """Describe the size and the range of a matrix."""
    rows, columns = matrix.shape
    return f"{label}: {rows} by {columns}, values from {matrix.min():.3g} to {matrix.max():.3g}."
