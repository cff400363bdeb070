"""Rows 28 to 47 of the list of hazards: each attack has the expected outcome.

Rows 40 to 42 and 46 are in test_keys_and_ledgers.py.
"""

import pytest

from tests.adversarial import clipping_attacks, model_attacks, setting_attacks
from tests.adversarial.attacks import ATTACKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.issue(21),
    pytest.mark.filterwarnings("ignore::antiphase.errors.AntiphaseWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast"),
]
MODULES = (clipping_attacks, model_attacks, setting_attacks)  # they register attacks
ROWS = {*range(28, 40), 43, 44, 45, 47}


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_ends_as_expected(attack):
    """Exact: the sum is that of a loop and no example moves it by more than C."""
    outcome = attack.outcome()
    assert outcome.kind in attack.expected, str(outcome)


@pytest.mark.slow
def test_every_row_has_attacks_that_end_as_expected(shown):
    """Prints a table of row, attack, outcome and expected outcome."""
    assert {attack.row for attack in ATTACKS} == ROWS
    lines = [f"  {'row':>3}  {'attack':75} {'outcome':45} expected"]
    for attack in ATTACKS:
        expected = " or ".join(attack.expected)
        lines.append(f"  {attack.row:>3}  {attack.what:75} {attack.outcome()!s:45} {expected}")
    wrong = [str(attack) for attack in ATTACKS if attack.outcome().kind not in attack.expected]
    table = "\n".join(lines)
    shown(f"attacks\n{table}\n  that ended otherwise", len(wrong), 0)
    assert not wrong
