"""Write docs/benchmarks.md from the record."""

import importlib
from pathlib import Path

HEAD = """# Benchmarks

`make bench` measures antiphase and its peers on the same work, each question in one run;
`make bench-full` has larger sizes. Peers are used as their documentation says, at their defaults.
Errors of their encoders are recomputed here in float64. Measurements that are short enough to be
repeated alternate between both sides; the first call is reported separately. Compare the ratios:
seconds are those of {cores} cores of a shared machine ({processor}, Python {python}, {date}). This
page is generated from the record, `results/benchmarks.json`.

## Claims

| | measured | asked | |
|---|---:|---:|---|
{claims}
"""


def write(record, docs: Path) -> Path:
    """The page with its figures; returns its path."""
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in record["questions"]}
    claims = [
        f"| {module.TITLE}: {claim.what} | {claim.measured} | {claim.asked} | "
        f"{'holds' if claim.holds else '**does not hold**'} |"
        for name, module in modules.items()
        for claim in module.claims(record["questions"][name])
    ]
    parts = [HEAD.format(claims="\n".join(claims), date=record["date"], **record["machine"])]
    lost = [
        loss
        for name, module in modules.items()
        for loss in module.losses(record["questions"][name])
    ]
    lines = "\n".join(f"| {loss.what} | {loss.why} |" for loss in lost)
    parts.append(f"## Where a peer is ahead\n\n| | why |\n|---|---|\n{lines}\n" if lost else "")
    for name, module in modules.items():
        parts.append(_section(module, record["questions"][name], docs / "figures"))
    path = docs / "benchmarks.md"
    path.write_text("\n".join(parts))
    return path


def _section(module, record, figures: Path) -> str:
    drawn = [path for path in module.draw(record, figures) if path.suffix == ".svg"]
    for path in figures.glob("benchmark-*.png"):
        path.unlink()  # the page shows the SVG files
    text = [f"## {module.TITLE}", "\n\n".join(module.notes(record))]
    text += [f"![{path.stem.replace('-', ', ')}](figures/{path.name})" for path in drawn]
    for table in module.tables(record):
        text += [f"**{table.title}**", table.markdown()]
    return "\n\n".join(text) + "\n"
