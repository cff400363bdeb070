"""Plans follow from optimizer, scheduler, loader and mechanism."""

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase.torch import PrivacyEngine
from antiphase.torch.plan import derive_plan, planned_learning_rates
from tests.torch.setting import Training, make_private, small_model


def test_the_plan_is_derived_from_optimizer_and_loader():
    model = small_model()
    sgd = torch.optim.SGD(
        model.parameters(), lr=0.5, momentum=0.9, nesterov=True, weight_decay=1e-3
    )
    plan = derive_plan(sgd, 10, epochs=3, steps=None)
    assert (plan.steps, plan.steps_per_epoch, plan.notes) == (30, 10, ())
    assert plan.workload.nesterov
    assert (plan.workload.momentum, plan.workload.weight_decay) == (0.9, 1e-3)
    assert plan.participation.describe() == "3 epochs of 10 steps"
    assert derive_plan(sgd, 10, epochs=1, steps=None).participation.describe() == "once"
    assert (
        derive_plan(sgd, 10, epochs=None, steps=25).participation.describe()
        == "3 epochs of 10 steps"
    )
    with pytest.raises(TypeError, match="planned ahead"):
        derive_plan(sgd, 10, epochs=None, steps=None)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_reading_a_scheduler_ahead_does_not_change_it(every):
    schedulers = torch.optim.lr_scheduler
    makers = [
        lambda o: schedulers.CosineAnnealingLR(o, 30),
        lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t)),
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, total_iters=5), schedulers.ExponentialLR(o, 0.9)], [5]
        ),
        lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=30),
    ]
    for make in makers:
        optimizer = torch.optim.SGD(small_model().parameters(), lr=0.5, momentum=0.9)
        scheduler = make(optimizer)
        before = repr(scheduler.state_dict()), repr(optimizer.state_dict())
        ahead = planned_learning_rates(optimizer, scheduler, 30, every, 10)
        assert (repr(scheduler.state_dict()), repr(optimizer.state_dict())) == before
        real = []
        for t in range(30):
            real.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if every == "step" or (t + 1) % 10 == 0:
                scheduler.step()
        np.testing.assert_allclose(ahead, real)
    plateau = schedulers.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match="not known ahead"):
        planned_learning_rates(optimizer, plateau, 5, every, 1)


def test_nonlinear_optimizers_are_warned_about():
    with pytest.warns(UserWarning, match="privacy is exact"):
        training = Training(optimizer=lambda p: torch.optim.Adam(p, lr=0.01), epochs=1)
    training.run()
    assert training.engine.remaining_steps == 0
    groups = lambda p: torch.optim.SGD(  # noqa: E731
        [{"params": [q], "momentum": 0.1 * i} for i, q in enumerate(p)], lr=0.1
    )
    with pytest.warns(UserWarning, match="first group"):
        Training(optimizer=groups, epochs=1)


@pytest.mark.slow
def test_mechanisms_are_given_by_name_object_or_file(tmp_path):
    f = ap.design("tree", steps=15, epochs=3)
    m = ap.calibrate(f, noise_multiplier=1.0)
    f.save(tmp_path / "f.antiphase")
    m.save(tmp_path / "m.antiphase")
    ends = []
    for mechanism in ("tree", f, m, tmp_path / "f.antiphase", str(tmp_path / "m.antiphase")):
        training = Training(mechanism)
        assert training.engine.mechanism.factorization.name == "tree"
        training.run()
        ends.append(training.engine.get_epsilon(1e-5))
    assert len(set(ends)) == 1
    for name in ap.designs():
        if name not in (
            "dp-sgd",
            "optimal",
            "curvature",
            "damped",
        ):  # need options, or are Opacus' own
            Training(name, epochs=2).run(3)
    Training("damped", design={"rho": 0.9}).run(2)
    with pytest.raises(ValueError, match="for 15 steps, and training has 10"):
        Training(f, epochs=2)
    with pytest.raises(ValueError, match="the mechanism has"):
        Training(m, noise_multiplier=2.0)
    with pytest.raises(TypeError, match="made already"):
        PrivacyEngine(mechanism=f, tau=3)


@pytest.mark.issue(21)
@pytest.mark.parametrize(
    "options", [{"max_grad_norm": 5.0}, {"clipping": "per_layer", "max_grad_norm": [1.0] * 4}]
)
def test_a_larger_clip_norm_than_that_of_the_mechanism_is_refused(options):
    """At five times the norm, examples would have a fifth of the noise they need."""
    m = ap.calibrate(ap.design("tree", steps=15, epochs=3), noise_multiplier=1.0, clip_norm=1.0)
    Training(m)
    with pytest.raises(ValueError, match=r"max_grad_norm = [25]: the mechanism has 1 and 1"):
        Training(m, **options)


@pytest.mark.parametrize("clip_norm", [0.5, 2.0])
def test_a_mechanism_with_another_clip_norm_is_refused(clip_norm):
    """A clip norm below the engine's would be too little noise."""
    f = ap.design("dp-mf", steps=15, epochs=3)
    mechanism = ap.calibrate(f, noise_multiplier=1.0, clip_norm=clip_norm)
    with pytest.raises(ValueError, match="max_grad_norm = 1: the mechanism has"):
        make_private(PrivacyEngine(mechanism=mechanism), None, epochs=3)
    engine = PrivacyEngine(mechanism=mechanism)
    make_private(engine, None, epochs=3, max_grad_norm=clip_norm)
    assert engine.mechanism is mechanism
