"""Rows 28 to 47 of the list of hazards: what was tried, what happened, and what was asked.

Rows 40 to 42 and 46 are in test_keys_and_ledgers.py.
"""

import pytest

from tests.adversarial import clipping_attempts, model_attempts, setting_attempts
from tests.adversarial.attempts import ATTEMPTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.issue(21),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore::antiphase.errors.AntiphaseWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast"),
]
MODULES = (clipping_attempts, model_attempts, setting_attempts)  # register what is tried
ROWS = {*range(28, 40), 43, 44, 45, 47}


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
def test_an_attack_ends_as_asked(attempt):
    """Exact: the sum is that of a loop, and no example moves it by more than C. Refused: nothing is released."""
    outcome = attempt.outcome()
    assert outcome.kind in attempt.asked, str(outcome)


@pytest.mark.slow
def test_every_row_has_attacks_and_each_ends_as_asked(shown):
    """The table: row, what was tried, what happened, what was asked."""
    assert {attempt.row for attempt in ATTEMPTS} == ROWS
    lines = [f"  {'row':>3}  {'tried':75} {'happened':45} asked"]
    for attempt in ATTEMPTS:
        asked = " or ".join(attempt.asked)
        lines.append(f"  {attempt.row:>3}  {attempt.what:75} {attempt.outcome()!s:45} {asked}")
    wrong = [str(attempt) for attempt in ATTEMPTS if attempt.outcome().kind not in attempt.asked]
    table = "\n".join(lines)
    shown(f"attacks\n{table}\n  that ended otherwise", len(wrong), 0)
    assert not wrong
