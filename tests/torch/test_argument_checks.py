"""Wrong calls of `make_private` are refused by name, with the remedy, before anything happens."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import antiphase as ap
from antiphase.errors import AntiphaseWarning
from antiphase.torch import PrivacyEngine
from tests.torch.setting import data, small_model


def sgd(*models, **options):
    return torch.optim.SGD([p for m in models for p in m.parameters()], **{"lr": 0.1} | options)


def loader(dataset=None, **options):
    return DataLoader(data() if dataset is None else dataset, **{"batch_size": 12} | options)


def call(model=None, optimizer=None, engine=None, make="make_private", **arguments):
    """A call that would work without ``arguments``; None leaves the default."""
    model = small_model() if model is None else model
    engine = PrivacyEngine(**{"mechanism": "dp-mf"} | (engine or {}))
    getattr(engine, make)(
        **{
            "module": model,
            "optimizer": sgd(model) if optimizer is None else optimizer,
            "data_loader": loader(),
            "noise_multiplier": 1.0,
            "max_grad_norm": 1.0,
            "epochs": 3,
        }
        | arguments
    )


def part_of(model):
    return {"model": model, "optimizer": sgd(model[0])}


def two_optimizers(model):
    return {"model": model, "optimizer": [sgd(model[0]), sgd(model[2])]}


def scheduler_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def frozen(model):
    return model.requires_grad_(False)


# What is wrong: (arguments, the error, its message)
WRONG = {
    "the model is missing": (
        {"module": None},
        TypeError,
        "module must be a torch.nn.Module, not NoneType",
    ),
    "the model is in eval mode": (
        lambda: {"model": small_model().eval()},
        ValueError,
        "module is in eval mode, in which per-example gradients are not recorded. Call "
        "module.train() before make_private",
    ),
    "BatchNorm": (
        lambda: {"model": nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))},
        ValueError,
        "1 (BatchNorm1d): BatchNorm cannot support training with differential privacy. Replace "
        "these layers, as opacus.validators.ModuleValidator.fix(module) does, and make the "
        "optimizer from the parameters of the new model",
    ),
    "everything is frozen": (
        lambda: {"model": frozen(small_model())},
        ValueError,
        "module has no parameter that requires a gradient, so there is nothing to train. "
        "Unfreeze some: requires_grad_(True)",
    ),
    "a list of optimizers": (
        lambda: two_optimizers(small_model()),
        TypeError,
        "optimizer is a list of 2: one step clips and releases all gradients together. Use one "
        "optimizer, with parameter groups for different options: SGD([{'params': …, 'lr': …}, "
        "…])",
    ),
    "the optimizer of another model": (
        lambda: {"optimizer": sgd(small_model())},
        ValueError,
        "Module parameters are different than optimizer Parameters: 4 of its 4 tensors are not "
        "the module's. Make the optimizer from the parameters() of the model that is given to "
        "make_private, after layers were replaced",
    ),
    "an optimizer of a part of the model": (
        lambda: part_of(small_model()),
        ValueError,
        "optimizer: 2.weight, 2.bias require gradients and are not in this optimizer, so they "
        "may be trained without privacy. Give all parameters to one optimizer, or freeze them: "
        'make_private(…, uncovered="freeze")',
    ),
    "an optimizer that needs a closure": (
        lambda: (lambda m: {"model": m, "optimizer": torch.optim.LBFGS(m.parameters())})(
            small_model()
        ),
        ValueError,
        "optimizer = LBFGS: its step needs a closure, which it may call several times, and a "
        "step has one release. Use an optimizer such as SGD or Adam",
    ),
    "neither epochs nor steps": (
        {"epochs": None},
        TypeError,
        "epochs = None, steps = None: correlated noise is planned ahead, so give the length of "
        "the training: epochs=… (passes over the data) or steps=…",
    ),
    "epochs and steps": ({"steps": 15}, TypeError, "epochs = 3, steps = 15: give one of the two"),
    "a negative number of epochs": ({"epochs": -1}, ValueError, "epochs = -1 must be at least 1"),
    "half an epoch": ({"epochs": 2.5}, TypeError, "epochs = 2.5 must be a whole number, not float"),
    "a clip norm of zero": ({"max_grad_norm": 0}, ValueError, "max_grad_norm = 0 must be positive"),
    "a clip norm in words": (
        {"max_grad_norm": "1"},
        TypeError,
        "max_grad_norm = '1' must be a number, not str",
    ),
    "a list of clip norms for flat clipping": (
        {"max_grad_norm": [1.0] * 4},
        TypeError,
        "max_grad_norm = [1.0, 1.0, 1.0, 1.0] is for clipping='per_layer', and clipping = "
        "'flat' has one norm for all tensors. Give a number",
    ),
    "too few clip norms": (
        {"max_grad_norm": [1.0, 1.0], "clipping": "per_layer"},
        TypeError,
        "max_grad_norm = [1.0, 1.0]: clipping='per_layer' needs a list of 4 norms, one for each "
        "trainable tensor in the order of the optimizer",
    ),
    "a negative one of several clip norms": (
        {"max_grad_norm": [1.0, 1.0, -1.0, 1.0], "clipping": "per_layer"},
        ValueError,
        "max_grad_norm[2] = -1.0 must be positive",
    ),
    "an unknown clipping": (
        {"clipping": "Flat"},
        ValueError,
        "clipping = 'Flat' must be one of flat, per_layer, adaptive; did you mean 'flat'?",
    ),
    "adaptive clipping": (
        {"clipping": "adaptive"},
        ValueError,
        "clipping = 'adaptive': clip norms that follow the data cost privacy that this plan "
        "does not account for. Use clipping='flat' or 'per_layer'",
    ),
    "an unknown grad_sample_mode": (
        {"grad_sample_mode": "hook"},
        ValueError,
        "grad_sample_mode = 'hook' must be one of hooks, functorch, ghost, ghost_fsdp; did you "
        "mean 'hooks'?",
    ),
    "ghost clipping per layer": (
        {"grad_sample_mode": "ghost", "clipping": "per_layer", "max_grad_norm": [1.0] * 4},
        ValueError,
        "grad_sample_mode = 'ghost' with clipping = 'per_layer' is not supported: ghost "
        "clipping has no norms of single tensors. Use clipping='flat', or "
        "grad_sample_mode='hooks'",
    ),
    "two reductions of the loss": (
        lambda: {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss(reduction="sum")},
        ValueError,
        "criterion.reduction = 'sum', loss_reduction = 'mean': ghost clipping needs the same of "
        "both. Change one of them",
    ),
    "no noise multiplier": (
        {"noise_multiplier": None},
        TypeError,
        "noise_multiplier = None, target_epsilon = None: give one of the two, the other follows",
    ),
    "a negative noise multiplier": (
        {"noise_multiplier": -1.0},
        ValueError,
        "noise_multiplier = -1.0 must be finite, at least 0",
    ),
    "ε and a noise multiplier": (
        {"target_epsilon": 1.0, "target_delta": 1e-5},
        TypeError,
        "noise_multiplier = 1.0, target_epsilon = 1.0: give one of the two, the other follows",
    ),
    "ε without δ": (
        {"noise_multiplier": None, "target_epsilon": 1.0},
        TypeError,
        "target_delta = None: ε needs a δ. Give target_delta=…, well below one over the number "
        "of records",
    ),
    "δ of one": (
        {"noise_multiplier": None, "target_epsilon": 1.0, "target_delta": 1.0},
        ValueError,
        "target_delta = 1.0 must be below 1; usually it is well below one over the number of "
        "records",
    ),
    "a generator of noise": (
        lambda: {"noise_generator": torch.Generator()},
        ValueError,
        "noise_generator: the noise comes from a secret key, never from a generator. For "
        "repeatable studies: PrivacyEngine(key=Key.insecure(seed))",
    ),
    "Poisson samples for correlated noise": (
        {"poisson_sampling": True},
        ValueError,
        "poisson_sampling = True: plain Poisson samples amplify independent noise alone. Use "
        'mechanism="dp-sgd", or a mechanism of few bands (antiphase.select_bands) with the '
        "batches of antiphase.torch.batch_sampler_for",
    ),
    "an argument that does not exist": (
        {"noise_multiplyer": 1.0},
        TypeError,
        "noise_multiplyer: make_private has no such argument for this mechanism; did you mean "
        "'noise_multiplier'?",
    ),
    "a participation in words": (
        {"participation": "once"},
        ValueError,
        "participation = 'once' must be \"trusted\" or a Participation such as antiphase.once()",
    ),
    "memory in words": (
        {"memory": "a lot"},
        ValueError,
        "memory = 'a lot' must be a size such as '512MB' or '2GiB'",
    ),
    "the scheduler of another optimizer": (
        lambda: {"scheduler": scheduler_of(sgd(small_model()))},
        ValueError,
        "scheduler = StepLR changes the rates of another optimizer. Make it for the optimizer "
        "that is given to make_private",
    ),
    "a scheduler by name": (
        {"scheduler": "cosine"},
        TypeError,
        "scheduler must be a learning-rate scheduler of torch, not str",
    ),
    "more accumulation than batches": (
        {"gradient_accumulation_steps": 6},
        ValueError,
        "gradient_accumulation_steps = 6 is more than the 5 batches of an epoch, and a step has "
        "examples of one epoch. Use at most so many",
    ),
    "a data set for a loader": (
        lambda: {"data_loader": data()},
        TypeError,
        "data_loader must be a torch.utils.data.DataLoader, not TensorDataset",
    ),
    "an empty loader": (
        lambda: {"data_loader": loader(TensorDataset(torch.zeros(0, 5), torch.zeros(0)))},
        ValueError,
        "data_loader has no batches: 0 example(s), batch_size = 12, drop_last = False. Use "
        "drop_last=False, or a smaller batch",
    ),
    "a dropped batch that is the only one": (
        lambda: {"data_loader": loader(batch_size=100, drop_last=True)},
        ValueError,
        "data_loader has no batches: 60 example(s), batch_size = 100, drop_last = True. Use "
        "drop_last=False, or a smaller batch",
    ),
    "a loader of single examples": (
        lambda: {"data_loader": loader(batch_size=None)},
        ValueError,
        "data_loader has batch_size = None: the number of examples in a batch is not known. Let "
        "the loader form the batches: DataLoader(…, batch_size=…)",
    ),
    "a loader that draws with replacement": (
        lambda: {"data_loader": loader(sampler=RandomSampler(data(), replacement=True))},
        ValueError,
        "data_loader: RandomSampler(replacement=True) may draw an example several times in an "
        "epoch, and one time is planned. Use replacement=False, or declare how often: "
        "participation=antiphase.min_separation(times, apart=1)",
    ),
    "another number of steps than the mechanism": (
        lambda: {"engine": {"mechanism": ap.design("dp-mf", steps=4)}},
        ValueError,
        "the mechanism is for 4 steps, and training has 15. Design it for steps=15, or give the "
        "engine the name of a design",
    ),
    "DP-SGD on Poisson samples without noise multiplier": (
        {"engine": {"mechanism": "dp-sgd"}, "noise_multiplier": None},
        TypeError,
        "noise_multiplier = None: DP-SGD on Poisson samples needs one. Give it, or use "
        "make_private_with_epsilon",
    ),
    "DP-SGD on Poisson samples with ε": (
        {
            "engine": {"mechanism": "dp-sgd"},
            "noise_multiplier": None,
            "target_epsilon": 1.0,
            "target_delta": 1e-5,
        },
        TypeError,
        "target_epsilon = 1.0: DP-SGD on Poisson samples is Opacus' own, whose make_private "
        "takes a noise_multiplier; use make_private_with_epsilon",
    ),
    # The engine itself
    "an unknown mechanism": (
        {"engine": {"mechanism": "dpmf+"}},
        ValueError,
        f"mechanism = 'dpmf+' must be one of {', '.join(ap.designs())}; did you mean 'dp-mf+'?",
    ),
    "a number for a mechanism": (
        {"engine": {"mechanism": 3}},
        TypeError,
        "mechanism = 3 must be the name of a design, the path of a file, a Factorization or a "
        "Mechanism, not int",
    ),
    "an option that the design does not have": (
        {"engine": {"mechanism": "dp-mf+", "tua": 4}},
        TypeError,
        "tua = 4: PrivacyEngine has no such argument, and dp-mf+ no such option; it takes tau, "
        "weight, include_final, anchor, tolerance, buffers; did you mean 'tau'?",
    ),
    "secure_mode": (
        {"engine": {"secure_mode": True}},
        ValueError,
        "secure_mode = True: noise always comes from a secret key with AES in counter mode "
        "here; leave secure_mode out, and give key=Key.load(path) to keep the key",
    ),
    "an unknown accountant": (
        {"engine": {"accountant": "pvr"}},
        ValueError,
        "accountant = 'pvr' must be one of rdp, gdp, prv; did you mean 'prv'?",
    ),
}


@pytest.mark.issue(23)
@pytest.mark.filterwarnings(
    "ignore:Secure RNG", f"ignore::{AntiphaseWarning.__module__}.AntiphaseWarning"
)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_call_says_what_is_wrong_and_what_to_do(wrong):
    arguments, error, message = WRONG[wrong]
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call(**(arguments() if callable(arguments) else arguments))


@pytest.mark.issue(23)
def test_a_refused_call_changes_nothing(shown):
    """Model, optimizer and engine are as before, and can be used afterwards."""
    shown("wrong calls with their message", len(WRONG), "≥ 25")
    assert len(WRONG) >= 25
    model, engine = small_model(), PrivacyEngine(mechanism="dp-mf")
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = sgd(model)
    options = {"module": model, "optimizer": optimizer, "data_loader": loader(), "epochs": 3}
    for wrong in ({"max_grad_norm": 0}, {"max_grad_norm": 1.0, "noise_multiplier": -1}):
        with pytest.raises(ValueError, match="must be"):
            engine.make_private(**options, **wrong)
    assert engine.plan is None
    assert engine.key is None
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    engine.make_private(**options, noise_multiplier=1.0, max_grad_norm=1.0)
    assert engine.remaining_steps == 15


def test_accepted_variants_of_these_arguments_stay_accepted():
    call(participation=ap.epochs(3, every=5), memory="1.5 GB", poisson_sampling=False)
    call(max_grad_norm=[1.0, 2.0, 1, 1.0], clipping="per_layer")
    model = small_model()
    optimizer = sgd(model)
    call(model=model, optimizer=optimizer, scheduler=scheduler_of(optimizer))
    call(epochs=None, steps=7, gradient_accumulation_steps=5)
