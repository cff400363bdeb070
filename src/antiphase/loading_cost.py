"""What the sensitivity of an encoder costs to compute, so that a small file cannot make it expensive."""

from __future__ import annotations

from typing import Any

from antiphase.participation import Participation

GRAM_COST = 30  # operations for an entry of CᵀC, about
CALL_COST = 10_000  # operations in the time of one call of `Columns.gram`, about


def sensitivity_cost(columns: Any, participation: Participation) -> dict[str, float]:
    """Bytes that `sensitivity` holds at once and operations it takes, for `files.spend`.

    Estimated from above, within a small factor. ``columns`` are the encoder's `Columns`.
    """
    steps, falling = columns.steps, bool(getattr(columns, "falling", False))
    if participation.fixed_order and columns.reach > participation.separation:
        patterns = 1 if falling else min(participation.separation, steps)
        n = -(-steps // participation.separation)
        return {"memory": 40 * n * n, "operations": patterns * (GRAM_COST * n * n + CALL_COST)}
    if not participation.fixed_order:
        count = min(participation.max_participations, -(-steps // participation.separation))
        if falling:
            return {"memory": 40 * count * count, "operations": GRAM_COST * count * count}
        if columns.reach > participation.separation and count > 1:
            entries = steps * steps
            return {"memory": 16 * entries, "operations": (2 * count + GRAM_COST) * entries}
        return {"memory": 8 * steps, "operations": count * (steps + CALL_COST // 10)}
    return {"memory": 8 * steps, "operations": steps}
