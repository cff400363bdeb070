"""Warnings of steps that the noise was not designed for."""

import warnings

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager

from antiphase.errors import AntiphaseWarning
from tests.torch.setting import Training

HALVED = {"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def trained(training, each_step=None):
    """The warnings of an epoch whose loop calls ``each_step`` after every step."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for batch in training.loader:
            training.step(batch)
            if each_step is not None:
                each_step()
    return [str(w.message) for w in seen if issubclass(w.category, AntiphaseWarning)]


@pytest.mark.issue(23)
def test_a_scheduler_that_was_not_handed_over_is_warned_about_once():
    training = Training(epochs=1)
    scheduler = torch.optim.lr_scheduler.StepLR(training.inner, 1, 0.5)
    (message,) = trained(training, scheduler.step)
    assert message == (
        "step 1: the learning rate is 0.05, and the noise was designed for 0.1. Privacy holds, but "
        "the noise cancels less than it could. make_private was given no scheduler, so it planned "
        "a constant rate. Give it: make_private(…, scheduler=…)"
    )


@pytest.mark.issue(23)
@pytest.mark.parametrize(("every", "epochs", "step"), [("step", 1, 1), ("epoch", 2, 5)])
def test_a_scheduler_that_is_never_stepped_is_warned_about_once(every, epochs, step):
    training = Training(epochs=epochs, scheduler_every=every, **HALVED)
    training.scheduler = None  # which `Training.step` would step
    messages = [message for _ in range(epochs) for message in trained(training)]
    assert len(messages) == 1
    assert messages[0].startswith(f"step {step}: the learning rate is 0.1, and the noise was desi")
    assert messages[0].endswith(
        "The scheduler that make_private was given was not stepped. Call scheduler.step() after "
        f"every {every}"
    )


@pytest.mark.issue(23)
def test_a_scheduler_that_is_stepped_at_other_times_is_warned_about_once():
    training = Training(epochs=2, scheduler_every="epoch", **HALVED)
    (message,) = trained(training)  # after every step
    assert message.endswith("as planned, after every epoch (scheduler_every='epoch')")


@pytest.mark.issue(23)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_scheduler_that_is_stepped_as_planned_is_not_warned_about(optimizer):
    training = Training(epochs=1, optimizer=lambda p: optimizer(p, lr=0.1), **HALVED)
    assert trained(training) == []


@pytest.mark.issue(23)
@pytest.mark.parametrize("every_piece", [False, True])
def test_a_scheduler_under_a_memory_manager_is_stepped_once_for_each_batch(every_piece):
    """Stepped after every piece of a batch, it is warned about."""
    training = Training(epochs=1, **HALVED)
    scheduler, training.scheduler, released = training.scheduler, None, 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=5, optimizer=training.optimizer
        ) as pieces:
            for batch in pieces:
                training.step(batch)
                if every_piece or training.release.position > released:
                    scheduler.step()
                released = training.release.position
    assert training.engine.remaining_steps == 0
    messages = [str(w.message) for w in seen if issubclass(w.category, AntiphaseWarning)]
    assert len(messages) == every_piece
    assert not messages or "Step the scheduler as planned, after every step" in messages[0]


def test_groups_with_rates_of_their_own_are_not_warned_about():
    """The rates of the first group are planned; another scale of the others changes no noise."""

    def two_rates(parameters):
        first, *others = parameters
        return torch.optim.SGD([{"params": [first]}, {"params": others, "lr": 0.05}], lr=0.1)

    assert trained(Training(epochs=1, optimizer=two_rates, **HALVED)) == []
