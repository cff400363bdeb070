"""The chart of design times."""

import numpy as np

from antiphase.reporting.charts import Lines, Series


def seconds_against_steps(curves, title):
    """Chart times against steps, with a dashed line that is proportional to the steps.

    Args:
        curves: name of the mechanism and (steps, seconds) pairs, by label.
        title: title of the chart.
    """
    series = []
    for label, (name, points) in curves.items():
        steps, seconds = np.array(sorted(points), dtype=np.float64).T
        series.append(Series(name, label, steps, seconds))
    if series:
        first = series[0]
        straight = first.y[0] * first.x / first.x[0]
        series.append(Series("", "proportional to the steps", first.x, straight, dashed=True))
    return Lines(title, "steps", "time (seconds)", series, log_x=True, log_y=True)
