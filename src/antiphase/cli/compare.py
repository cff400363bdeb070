"""``antiphase compare``: mechanisms side by side, at equal privacy."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from typer import Option

from antiphase import comparison as comparisons
from antiphase._util.suggestions import suggestion
from antiphase.cli import errors, options, output
from antiphase.cli.errors import usage_error
from antiphase.cli.progress import candidates_bar
from antiphase.cli.report import ReportOptions
from antiphase.cli.setting import setting_from
from antiphase.comparison import Candidate, Comparison, Entry, Setting
from antiphase.design import options_for
from antiphase.reporting import comparison_report
from antiphase.sampling import KINDS, CyclicPoisson, has_rate, parse


def _matching_mechanisms(incomplete: str) -> list[str]:
    return [name for name in options.MECHANISMS if name.startswith(incomplete)]


@dataclass(frozen=True)
class CandidateOptions:
    """Which mechanisms are compared."""

    mechanism: Annotated[
        list[str] | None,
        Option(
            "--mechanism",
            "-m",
            help="Mechanism besides DP-SGD, may be repeated: dp-mf+:tau=128.",
            autocompletion=_matching_mechanisms,
        ),
    ] = None
    family: Annotated[
        bool, Option("--family", help="Include toeplitz, banded, blt and few buffers.")
    ] = False

    def __post_init__(self) -> None:
        if self.family and self.mechanism:
            raise usage_error("--family and --mechanism: give one")

    def candidates(self, setting: Setting) -> list[Candidate]:
        """Return the mechanisms that were given, after DP-SGD; or the default ones."""
        if self.mechanism:
            return [*comparisons.dp_sgd_candidates(setting), *self.given(setting)]
        return comparisons.default_candidates(setting, self.family)

    def given(self, setting: Setting) -> list[Candidate]:
        """Return the mechanisms that were given."""
        texts = self.mechanism or []
        return [_candidate(text, setting) for text in texts if text != "dp-sgd"]

    def require_one(self, comparison: Comparison) -> None:
        """Refuse a comparison in which none of the given mechanisms could be designed."""
        given = [candidate.label for candidate in self.given(comparison.setting)]
        if given and not comparison.stopped and all(k in comparison.refused for k in given):
            reasons = "; ".join(f"{label}: {comparison.refused[label]}" for label in given)
            raise ValueError(f"no candidate can be compared: {reasons}")


def compare(
    *,
    length: options.ParticipationPattern,
    budget: options.Budget,
    mechanisms: CandidateOptions,
    sampling: options.BatchSampling,
    optimizer: options.Optimizer,
    parameters: options.Parameters = 100_000,
    tolerance: options.Tolerance = 1e-3,
    report: ReportOptions,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV instead.")] = False,
    display: options.Display,
) -> None:
    """Compare mechanisms at equal privacy.

    How much noise each leaves in the model, and its cost.

    Percentages are relative to DP-SGD: on Poisson batches, where its noise can be computed
    (--epsilon, --delta and epochs), otherwise in a fixed order.

    Example: antiphase compare --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    if as_csv and display.as_json:
        raise usage_error("--csv and --json: give one")
    options.require_writable(report.html, folders=(report.figures,))
    setting = setting_from(length, budget, sampling, optimizer, parameters)
    candidates = mechanisms.candidates(setting)
    with candidates_bar(display.silent or as_csv, tolerance) as update:
        comparison = comparisons.compare(setting, candidates, tolerance=tolerance, progress=update)
    mechanisms.require_one(comparison)
    files = report.write(
        partial(comparison_report.charts, comparison), partial(comparison_report.page, comparison)
    )
    if display.as_json:
        output.print_json(comparison.to_dict() | {"files": files})
    elif as_csv:
        _print_csv(comparison)
    else:
        _print(comparison)
        output.print_files(files)
    _print_warnings(comparison)
    if comparison.stopped:
        errors.interrupted("by Ctrl-C; these are the results so far")


def _candidate(text: str, setting: Setting) -> Candidate:
    """Parse ``NAME:option=value,…,sampler``."""
    name, _, rest = text.partition(":")
    if name not in options.MECHANISMS:
        similar = suggestion(name, options.MECHANISMS)
        raise usage_error(
            f"--mechanism = {text} must be one of {', '.join(options.MECHANISMS)}{similar}"
        )
    parts = [part for part in rest.split(",") if part]
    samplers = [part for part in parts if part in KINDS]
    if len(samplers) > 1:
        raise usage_error(
            f"--mechanism {text}: {samplers[0]} and {samplers[1]} exclude each other; give one"
        )
    sampling = None
    for sampler in samplers:
        sampling = parse(sampler, setting.sampling_rate if has_rate(sampler) else None)
    given = options.parse_options([part for part in parts if part not in KINDS])
    known = options_for(name)
    if unknown := sorted(set(given) - set(known)):
        raise usage_error(
            f"--mechanism {text}: {name} has no option {unknown[0]}; it takes {', '.join(known)}"
        )
    if name == "dp-mf+" and not isinstance(sampling or setting.sampling, CyclicPoisson):
        # With cyclic Poisson sampling, τ is the number of bands, which is searched for.
        given.setdefault("tau", setting.steps)
    return Candidate(name, given, sampling)


def _print_csv(comparison: Comparison) -> None:
    rows = [{k: v for k, v in row.items() if k != "options"} for row in comparison.rows()]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print(comparison: Comparison) -> None:
    setting = comparison.setting
    noise = [
        "mechanism",
        "noise\nmultiplier",
        "average\niterate",
        "final\niterate",
        "over\noptimum",
    ]
    if setting.sampling.amplifies:
        noise.insert(1, "amplified")
    cost = ["design", "noise\nmemory", "noise\nper step"]
    rows = [_cells(entry, comparison) for entry in comparison.entries]
    privacy = "equal privacy"
    if setting.epsilon is None:
        privacy = "noise multiplier 1, which is equal privacy"
    title = f"Noise in the model at {privacy}\n{setting.describe()}"
    table = output.number_table(*noise, *cost, title=title, rows=rows)
    if output.fits_terminal(table):
        output.print_table(table)
    else:
        count = len(noise)
        noise_rows = [row[:count] for row in rows]
        cost_rows = [[row[0], *row[count:]] for row in rows]
        output.print_table(output.number_table(*noise, title=title, rows=noise_rows))
        output.print_table(output.number_table("mechanism", *cost, title="Cost", rows=cost_rows))
    output.print_paragraph(comparisons.conclusion(comparison))
    output.print_paragraph(comparisons.batches_needed(comparison))
    output.print_text()
    baseline = comparison.baseline
    relative = "" if baseline is None else f", and in percent of that of {baseline.label}"
    output.print_note(
        "Iterates: standard deviation of the noise per coordinate, summed over the batch, at clip "
        f"norm 1{relative}. Over optimum: squared noise over all iterates, relative to the "
        "certified minimum of any encoder on batches in a fixed order. Memory and time per step "
        f"are for {setting.parameters:,} parameters; the time of a design is that of the cache if "
        "it was made before. A star marks the frontier: no other row has as little noise in the "
        "average iterate at as little memory, or as little time."
    )


def _cells(entry: Entry, comparison: Comparison) -> list[str]:
    row = entry.to_dict(comparison.baseline)

    def with_relative(value: float, relative: float | None) -> str:
        return f"{value:#.4g}".rstrip(".") + ("" if relative is None else f" {relative:4.0%}")

    def starred(text: str, frontier: tuple[Entry, ...]) -> str:
        return text + (" *" if entry in frontier else "  ")

    cells = [
        entry.label,
        f"{entry.mechanism.noise_multiplier:.4g}",
        with_relative(entry.average, row["average_relative"]),
        with_relative(entry.final, row["final_relative"]),
        "–" if entry.over_optimum is None else f"{entry.over_optimum:.3f} ×",
        output.format_seconds(entry.design_seconds),
        starred(output.format_bytes(entry.noise_bytes), comparison.memory_frontier),
        starred(output.format_seconds(entry.step_seconds), comparison.time_frontier),
    ]
    if comparison.setting.sampling.amplifies:
        cells.insert(1, "yes" if entry.amplified else "no")
    return cells


def _print_warnings(comparison: Comparison) -> None:
    setting = comparison.setting
    size = setting.sampling_rate * len(setting.participation.patterns(setting.steps))
    if abs(size - 1) > 0.01:
        output.print_warning(
            f"at rate {setting.sampling_rate:g}, sampled batches are {size:.3g} times as large as "
            "those in a fixed order: the noise in the mean gradient is that of the sum divided by "
            "this factor"
        )
    for label, reason in comparison.refused.items():
        output.print_warning(f"without {label}: {reason}")
