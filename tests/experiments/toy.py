"""A study whose cells square numbers, sleep, fail or die: what each does is in its settings."""

import os
import time
from types import SimpleNamespace

import numpy as np

from experiments.runner import Table


def work(cell):
    time.sleep(cell.get("sleep", 0.0))
    if cell.get("how") == "raises":
        raise ArithmeticError(f"{cell['number']} cannot be squared")
    if cell.get("how") == "dies":
        os._exit(3)
    if cell.get("how") == "no number":
        return {"square": float("nan")}
    noise = float(
        np.random.default_rng(cell["seed"]).normal(size=(64, 64)).T.dot(np.ones(64)).sum()
    )
    return {"square": cell["number"] ** 2, "noise": noise, "threads": os.environ["OMP_NUM_THREADS"]}


def cells(count, **more):
    return [{"number": number, "seed": number} | more for number in range(count)]


def study(made, name="toy", revision=1):
    """With these cells, by default and in full."""
    return SimpleNamespace(
        NAME=name,
        TITLE="Squares",
        REVISION=revision,
        cells=lambda full: made,
        work=work,
        summary=lambda found, full: {"sum": sum(result["square"] for _, result in found)},
        draw=lambda record, folder: [],
        tables=lambda record: [Table("Squares", ["sum"], [[str(record["summary"]["sum"])]])],
    )


if __name__ == "__main__":
    import sys
    from pathlib import Path

    from experiments import runner
    from tests.experiments import toy

    runner.run(toy.study(toy.cells(6, sleep=0.5)), Path(sys.argv[1]), jobs=2)
