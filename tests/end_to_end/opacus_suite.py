"""Opacus' own tests, run with our engine in place of theirs.

    python -m tests.end_to_end.opacus_suite [--engine module:Class] [--json] [-v] [--all]
                                            [pattern …]

Every module of `opacus.tests` that names `PrivacyEngine` runs, except the tests of NOT_APPLICABLE,
each with its reason. Opacus' own marks that skip a test are removed, since most of these tests run
here. A test that skips itself counts as a failure, and so does an entry of NOT_APPLICABLE that
matches no test.

- Hypothesis: examples are derandomised, so that two runs are the same. At most EXAMPLES of them
  run instead of 100, to keep the run within minutes; 30 still visit all 16 combinations of
  test_compare_to_vanilla. There is no deadline where Opacus sets none.
- Seeds: each test starts with seeds made from its name, so that it does not depend on others.
- torchvision: replaced by a stub, since the tests use only made-up images and two networks with
  batch norm.

The exit code is 0 only if nothing failed and at least MIN_TESTS tests ran.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import pkgutil
import random
import sys
import textwrap
import time
import types
import unittest
import warnings
import zlib
from collections import OrderedDict
from fnmatch import fnmatch

EXAMPLES = 30
MIN_TESTS = 50

ACCOUNTED = (
    "requires that a step on several Poisson samples is refused; ours accounts for every sample"
)
CLEARED = (
    "reads per-example gradients or their sum after step(), which clears both: they would be "
    "saved with the model"
)
NO_VMAP = (
    "requires that Opacus' per-example function of torch.func is attached to a layer; ours "
    "records the passes instead"
)
NO_BODY = "empty: its body is `pass`"
NO_CSPRNG = "needs torchcsprng, which is not installed"
EMPTY_BATCH = "privacy_engine_test.PrivacyEngineConvNetEmptyBatchTest"
MEMORY_MANAGER = "batch_memory_manager_test.BatchMemoryManagerTestWithExpandedWeights"
CONVNET = "privacy_engine_test.PrivacyEngineConvNetTestExpandedWeights"
ACCUMULATION = "gradient_accumulation_test.GradientAccumulationTest*"
SECURE_MODE = "randomness_test.PrivacyEngineSecureModeTest"

# module.Class.method, with wildcards -> why it cannot run here.
NOT_APPLICABLE = {
    f"{MEMORY_MANAGER}.test_empty_batch": NO_BODY,
    "ddp_hook_check": "needs two GPUs and nccl (and the interface of Opacus before 1.0)",
    "mixed_precision_test": "needs a GPU",
    "multigpu_adaptive_clipping_test": "needs two GPUs and nccl",
    "multigpu_fsdpcheck": "needs two GPUs and nccl",
    "multigpu_gradcheck_test": "needs two GPUs and nccl",
    "multigpu_precision_test": "needs two GPUs and nccl",
    f"{EMPTY_BATCH}.test_checkpoints": NO_BODY,
    f"{EMPTY_BATCH}.test_noise_level": NO_BODY,
    f"{CONVNET}.test_sample_grad_aggregation": NO_BODY,
    "privacy_engine_test.PrivacyEngineText*.test_make_private_with_epsilon": (
        "refused here: a time-first model with batch_first=True, whose gradients have a row for "
        "each token position instead of each example"
    ),
    f"{ACCUMULATION}.test_privacy_engine_poisson_accumulation": ACCOUNTED,
    f"{ACCUMULATION}.test_privacy_engine_zero_grad": ACCOUNTED,
    "privacy_engine_test.*.test_flat_clipping": CLEARED,
    "privacy_engine_test.*.test_sample_grad_aggregation": CLEARED,
    "privacy_engine_test.*.test_per_layer_clipping": (
        "requires norms equal to the clip norm to three places; ours are shorter by the clip "
        "margin, 0.24 % for a Poisson sample of 8 expected examples (docs/clipping.md)"
    ),
    "privacy_engine_validation_test.*.test_custom_linear_hooks": NO_VMAP,
    "privacy_engine_validation_test.*.test_extra_param_hooks_requires_grad": NO_VMAP,
    "privacy_engine_validation_test.*.test_unsupported_hooks": NO_VMAP,
    f"{SECURE_MODE}.test_raise_secure_mode": NO_CSPRNG,
    f"{SECURE_MODE}.test_secure_mode_*": NO_CSPRNG,
}


def stand_in():
    """The names that the tests take from torchvision."""
    import torch
    from torch import nn

    class FakeData:
        """Noise with labels; an item depends on its index alone."""

        def __init__(self, size, image_size, num_classes, transform):
            self.size, self.image_size = size, image_size
            self.num_classes, self.transform = num_classes, transform

        def __len__(self):
            return self.size

        def __getitem__(self, index):
            if index >= self.size:
                raise IndexError(index)
            generator = torch.Generator().manual_seed(index)
            image = torch.rand(self.image_size, generator=generator)
            label = torch.randint(self.num_classes, (), generator=generator)
            return self.transform(image), int(label)

    class Compose:
        def __init__(self, transforms):
            self.transforms = transforms

        def __call__(self, image):
            for transform in self.transforms:
                image = transform(image)
            return image

    class ToTensor:
        def __call__(self, image):
            return image

    class Normalize:
        def __init__(self, mean, std):
            self.mean = torch.tensor(mean)[:, None, None]
            self.std = torch.tensor(std)[:, None, None]

        def __call__(self, image):
            return (image - self.mean) / self.std

    def network(weights=None):
        """A network with batch norm, which Opacus can replace.

        Opacus clones it by pickling, so it is not a class of this file.
        """
        layers = {
            "convolution": nn.Conv2d(3, 32, 3, bias=False),
            "normalisation": nn.BatchNorm2d(32),
            "activation": nn.ReLU(),
            "pooling": nn.AdaptiveAvgPool2d(1),
            "flattening": nn.Flatten(),
            "classifier": nn.Linear(32, 1000),
        }
        return nn.Sequential(OrderedDict(layers))

    contents = {
        "datasets": {"FakeData": FakeData},
        "transforms": {"Compose": Compose, "ToTensor": ToTensor, "Normalize": Normalize},
        "models": {"resnet18": network, "densenet121": network},
    }
    package = sys.modules["torchvision"] = types.ModuleType("torchvision")
    for name, members in contents.items():
        module = sys.modules[f"torchvision.{name}"] = types.ModuleType(f"torchvision.{name}")
        vars(module).update(members)
        setattr(package, name, module)


def one_thread():
    """Use one thread, so that sums have the same order on every machine."""
    import torch

    torch.set_num_threads(1)


def repeatable_examples():
    """Set Hypothesis' profile; called before tests are imported, whose decorators read it."""
    from hypothesis import settings

    settings.register_profile(
        "repeatable", derandomize=True, database=None, deadline=None, max_examples=EXAMPLES
    )
    settings.load_profile("repeatable")


def install(name):
    """Replace Opacus' engine; the class counts its instances."""
    import opacus.privacy_engine

    module, _, attribute = name.partition(":")
    base = getattr(importlib.import_module(module), attribute)
    default = {} if base is opacus.PrivacyEngine else {"mechanism": "dp-sgd"}

    class PrivacyEngine(base):
        made = 0
        __module__, __qualname__ = "opacus.privacy_engine", "PrivacyEngine"  # where pickle finds it

        def __init__(self, **arguments):
            PrivacyEngine.made += 1
            super().__init__(**default | arguments)

    opacus.PrivacyEngine = opacus.privacy_engine.PrivacyEngine = PrivacyEngine
    return PrivacyEngine


def modules():
    """The modules of opacus.tests, and whether each names an engine."""
    import opacus.tests

    for found in pkgutil.walk_packages(opacus.tests.__path__, "opacus.tests."):
        if not found.ispkg:
            source = found.module_finder.find_spec(found.name).loader.get_source(found.name)
            yield found.name.removeprefix("opacus.tests."), "PrivacyEngine" in source


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item.id().removeprefix("opacus.tests."), item


def load(name, engine):
    """The tests of a module by name; it must use our engine."""
    module = importlib.import_module(f"opacus.tests.{name}")
    if getattr(module, "PrivacyEngine", engine) is not engine:
        raise RuntimeError(f"{name} does not see the engine")
    return cases(unittest.defaultTestLoader.loadTestsFromModule(module))


def seed(name):
    """Seed the default generators of Opacus and torch."""
    import torch

    number = zlib.crc32(name.encode())
    random.seed(number)
    torch.manual_seed(number)


def remove_skip(case):
    """Undo unittest.skip, which sets an attribute and wraps the method."""
    type(case).__unittest_skip__ = False
    method = getattr(case, case._testMethodName)
    if getattr(method, "__unittest_skip__", False):
        setattr(case, case._testMethodName, types.MethodType(method.__wrapped__, case))


def run(name, case):
    """Run a test; returns its failures as text, empty if it passed."""
    seed(name)
    remove_skip(case)
    result, printed = unittest.TestResult(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        unittest.TestSuite([case]).run(result)
    wrong = [text for _, text in result.failures + result.errors]
    wrong += [f"skipped, and not in NOT_APPLICABLE: {text}" for _, text in result.skipped]
    if "not ran" in printed.getvalue():  # some catch ImportError, print this and pass
        wrong.append(printed.getvalue())
    return "\n".join(wrong)


def line_for(name):
    """The entry of NOT_APPLICABLE that covers a test."""
    return next(
        (key for key in NOT_APPLICABLE if fnmatch(name, key) or fnmatch(name, f"{key}.*")), None
    )


def run_module(tests, everything, tell):
    """The outcome of each test by name, with the text of a failure or the entry that covers it."""
    for name, case in tests:
        key = None if everything else line_for(name)
        wrong = "" if key else run(name, case)
        outcome = "not applicable" if key else "failed" if wrong else "passed"
        tell(f"  {outcome:15}{name}")
        yield name, outcome, key or wrong


def run_all(arguments, say):
    """Run the tests that apply; returns the report."""
    engine = install(arguments.engine)
    complete = not arguments.pattern
    tell = say if arguments.verbose else lambda text: None
    report = {
        "engine": arguments.engine,
        "modules": {},
        "not applicable": {},
        "no engine": [],
        "failures": {},
    }
    for module, named in modules():
        if not named:
            report["no engine"].append(module)
            continue
        tests = [
            t for t in load(module, engine) if complete or any(p in t[0] for p in arguments.pattern)
        ]
        if not tests:
            continue
        made_before, began = engine.made, time.perf_counter()
        counts = {"passed": 0, "failed": 0, "not applicable": 0}
        for name, outcome, text in run_module(tests, arguments.all, tell):
            counts[outcome] += 1
            if outcome == "failed":
                report["failures"][name] = text
            if outcome == "not applicable":
                line = report["not applicable"].setdefault(
                    text, {"tests": 0, "reason": NOT_APPLICABLE[text]}
                )
                line["tests"] += 1
        made, took = engine.made - made_before, time.perf_counter() - began
        report["modules"][module] = {**counts, "engines": made, "seconds": round(took, 1)}
        described = ", ".join(f"{count:3} {outcome}" for outcome, count in counts.items())
        say(f"{module:36}{described}, {made:4} engines, {took:5.1f} s")
        if complete and counts["passed"] and not made and not arguments.all:
            report["failures"][module] = "no test of this module made an engine"
    if complete and not arguments.all:
        for key in NOT_APPLICABLE.keys() - report["not applicable"].keys():
            report["failures"][key] = "in NOT_APPLICABLE, and there is no such test"
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="antiphase.torch:PrivacyEngine", metavar="module:Class")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="also run tests that do not apply")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every test and every warning"
    )
    parser.add_argument(
        "pattern", nargs="*", help="only tests whose module.Class.method contains it"
    )
    arguments = parser.parse_args()

    if not arguments.verbose:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
    one_thread()
    repeatable_examples()
    stand_in()

    stream = sys.stderr if arguments.json else sys.stdout
    report = run_all(arguments, lambda text: print(text, file=stream, flush=True))
    passed, away = (
        sum(m[k] for m in report["modules"].values()) for k in ("passed", "not applicable")
    )
    failed = len(report["failures"])
    report["summary"] = f"privacy engine: {passed} passed, {failed} failed, {away} not applicable"
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print("\nNot applicable:")
        for key, line in report["not applicable"].items():
            print(f"  {key} ({line['tests']}): {line['reason']}")
        names = ", ".join(report["no engine"])
        print(
            f"\nThese {len(report['no engine'])} modules never construct a PrivacyEngine, and "
            "are not counted:"
        )
        print(textwrap.fill(names, 100, initial_indent="  ", subsequent_indent="  "))
        for name, text in report["failures"].items():
            print(f"\nFAILED {name}\n{text}")
        if passed + failed < MIN_TESTS:
            print(f"\nfewer than {MIN_TESTS} tests ran")
        print(f"\n{report['summary']}")
    return 0 if not failed and passed >= MIN_TESTS else 1


if __name__ == "__main__":
    sys.exit(main())
