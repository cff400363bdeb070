"""Results of audits in words and JSON; checks of scores and counts."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.auditing.claims import Claim

MAX_SCORES = 10**7  # all are kept in memory
ROC_POINTS = 400
CAN_SHOW = (
    "An alarm, at this confidence, means that the claim is false: the code, the accounting or a "
    "setting is wrong."
)
CANNOT_SHOW = (
    "No alarm proves nothing: another canary, a better score or more trials may detect what this "
    "audit missed, and weaknesses that it does not test (a leaked key, logs, side channels, "
    "rounding) remain undetected."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditResult:
    """What both kinds of audit report.

    Attributes:
        claim: the claim that was tested.
        confidence: the probability, at least, with which ``lower_bound`` holds.
        lower_bound: lower bound of μ, or of ε for an `ApproximateClaim`.
        alarm: whether the claim is refuted.
        roc: rows of (false positive rate, true positive rate), measured, from (0, 0) to (1, 1).
    """

    claim: Claim
    confidence: float
    lower_bound: float
    alarm: bool
    roc: Array = field(repr=False)

    def to_json(self) -> str:
        """The result as JSON, with what an audit can and cannot show."""
        content = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in asdict(self).items()
        }
        content["claim"] = {"name": self.claim.name} | content["claim"]
        content |= {"can_show": CAN_SHOW, "cannot_show": CANNOT_SHOW}
        return json.dumps(content, indent=2, ensure_ascii=False)

    def _data(self) -> str:
        """The data that the result rests on, in words."""
        raise NotImplementedError

    def __str__(self) -> str:
        name, bound, claimed = self.claim.name, self.lower_bound, self.claim.value
        if self.alarm:
            verdict = f"ALARM: {name} is at least {bound:.4g}, and {claimed:.4g} was claimed."
        else:
            verdict = f"No alarm: {name} is at least {bound:.4g}, which {claimed:.4g} allows."
        failure = f"the bound fails with probability at most {1 - self.confidence:.2g}"
        paragraphs = [
            f"{verdict} ({self.claim}; {self._data()}; {failure}.)",
            CAN_SHOW if self.alarm else CANNOT_SHOW,
        ]
        return "\n".join(textwrap.fill(paragraph, 100) for paragraph in paragraphs)


def checked_scores(scores: Any, count: int) -> Array:
    """``scores`` as an array of ``count`` numbers; infinite ones become the largest floats."""
    array = np.atleast_1d(np.asarray(scores, dtype=np.float64))
    if array.shape != (count,):
        raise ValueError(
            f"scores has shape {array.shape}; return {count} scores, one for each trial or canary"
        )
    if np.isnan(array).any():
        raise ValueError("scores has NaN entries; every score must be a number")
    largest = np.finfo(np.float64).max
    return np.clip(array, -largest, largest)


def checked_count(name: str, value: Any, minimum: int) -> int:
    """``value`` as a number of trials or canaries."""
    count = check.whole_number(name, value, minimum=minimum)
    if count > MAX_SCORES:
        raise ValueError(f"{name} = {count} must be at most {MAX_SCORES:,}")
    return count


def checked_confidence(confidence: float) -> float:
    """``confidence`` as a probability of at least 0.5."""
    confidence = check.positive_number("confidence", confidence)
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence = {confidence:g} must be at least 0.5 and below 1")
    return confidence
