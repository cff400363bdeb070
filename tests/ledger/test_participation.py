"""The participation ledger, against the definition of each participation."""

import itertools

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import ParticipationError
from antiphase.ledger.participation import ParticipationLedger


def allowed(participation, history):
    """Whether one example may take part in these steps: from the definition, pattern by pattern."""
    if participation.describe() == "once":
        return len(history) <= 1
    if len(history) > participation.count:
        return False
    if hasattr(participation, "every"):
        return len({t % participation.every for t in history}) <= 1
    return all(b - a >= participation.apart for a, b in itertools.pairwise(history))


def schedule(rng, participation, examples, steps):
    """Mostly as planned, sometimes not."""
    every = getattr(participation, "every", getattr(participation, "apart", steps))
    order = rng.permutation(examples)
    size = -(-examples // max(every, 1))
    for t in range(steps):
        batch = list(order[(t % every) * size : (t % every + 1) * size])
        if rng.random() < 0.05:
            batch.append(int(rng.integers(examples)))
        yield t, np.array(batch, dtype=np.int64)


@pytest.mark.slow
def test_10000_schedules_against_an_oracle():
    rng = np.random.default_rng(8)
    refused = 0
    for _ in range(10_000):
        k, b = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        participation = [ap.once(), ap.epochs(k, b), ap.min_separation(k, b)][rng.integers(3)]
        examples = int(rng.integers(1, 9))
        ledger, histories = (
            ParticipationLedger(participation, examples),
            [[] for _ in range(examples)],
        )
        for t, batch in schedule(rng, participation, examples, int(rng.integers(1, 10))):
            before = ledger.state()
            fine = len(set(batch.tolist())) == len(batch) and all(
                allowed(participation, [*histories[i], t]) for i in batch
            )
            if fine:
                ledger.check(t, batch)
                ledger.record(t, batch)
                for i in batch:
                    histories[i].append(t)
            else:
                refused += 1
                with pytest.raises(ParticipationError):
                    ledger.check(t, batch)
                after = ledger.state()
                assert all((after[name] == before[name]).all() for name in before), (
                    "a refusal leaves no trace"
                )
                break
    assert 1_000 < refused < 9_000, "both outcomes were tried"


def test_eight_bytes_an_example():
    ledger = ParticipationLedger(ap.epochs(3, 7), 1000)
    assert ledger.when.nbytes + ledger.count.nbytes == 8000
    with pytest.raises(ParticipationError, match="out of range"):
        ledger.check(0, np.array([1000]))
    with pytest.raises(ParticipationError, match="1000 examples"):
        ParticipationLedger(ap.epochs(3, 7), 999).restore(ledger.state())


def test_examples_that_are_not_there_are_refused_and_none_at_all_are_fine():
    ledger = ParticipationLedger(ap.once(), 3)
    ledger.check(0, np.array([], dtype=np.int64))
    ledger.check(0, np.array([0, 2]))
    for outside in ([-1], [3], [1, -1], [-3, 2], [0, 3]):
        with pytest.raises(ParticipationError, match="out of range for a dataset of 3"):
            ledger.check(0, np.array(outside))


def test_a_ledger_that_was_restored_goes_on_alike():
    ledger = ParticipationLedger(ap.min_separation(2, 3), 4)
    ledger.record(5, np.array([1, 2]))
    state = ledger.state()
    ledger.record(8, np.array([1]))
    again = ParticipationLedger(ap.min_separation(2, 3), 4)
    again.restore(state)
    assert again.count.tolist() == [0, 1, 1, 0], "what came after the state is not in it"
    assert again.when.nbytes + again.count.nbytes == 8 * 4
    again.check(8, np.array([0, 1, 2, 3]))
    with pytest.raises(ParticipationError, match="less than 3 steps after"):
        again.check(7, np.array([2]))
    again.record(8, np.array([0, 1]))
    assert state["count"].tolist() == [0, 1, 1, 0], "nor does it change the state"
    for part in ("when", "count"):
        with pytest.raises(ParticipationError, match="has 5 examples, and the dataset has 4"):
            again.restore({**state, part: np.zeros(5, np.int32)})
        assert again.count.tolist() == [1, 2, 1, 0], "nothing was changed"
