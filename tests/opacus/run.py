"""The tests that Opacus ships, with our engine in the place of theirs: under DP-SGD, nothing may have changed.

    python -m tests.opacus.run [--engine module:Class] [--json] [-v] [--all] [pattern …]

Every module of `opacus.tests` that names `PrivacyEngine` runs, except what NOT_APPLICABLE lists with its reason. A test
that skips itself and is not listed there has failed, and so has a listed name that matches nothing.

- Hypothesis: the examples are derandomised, so that two runs are the same; at most EXAMPLES of them (100 by default)
  keep the run within minutes; no deadline where Opacus sets none, because a busy machine is no failure.
- Seeds: each test begins with seeds of its own, made from its name, so that it does not depend on the others.
- torchvision: a stand-in, since only made-up images and two networks with batch norm are asked of it.

The exit code is 0 only if nothing failed and at least LEAST tests ran, also when a pattern selects fewer.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import json
import pkgutil
import random
import sys
import time
import types
import unittest
import warnings
import zlib
from collections import OrderedDict
from fnmatch import fnmatch

EXAMPLES = 20
LEAST = 50

# module.Class.method, with wildcards -> why it cannot run here, or says nothing about an engine.
NOT_APPLICABLE = {
    "ddp_hook_check": "needs two GPUs and nccl (and the interface of Opacus before 1.0)",
    "mixed_precision_test": "needs a GPU",
    "multigpu_adaptive_clipping_test": "needs two GPUs and nccl",
    "multigpu_fsdpcheck": "needs two GPUs and nccl",
    "multigpu_gradcheck_test": "needs two GPUs and nccl",
    "multigpu_precision_test": "needs two GPUs and nccl",
    "privacy_engine_test.*.test_generate_noise_in_secure_mode": "needs torchcsprng, which is not installed",
    "randomness_test.PrivacyEngineSecureModeTest.test_raise_secure_mode": "needs torchcsprng, which is not installed",
    "randomness_test.PrivacyEngineSecureModeTest.test_secure_mode_*": "needs torchcsprng, which is not installed",
}
NEVER = "never constructs a PrivacyEngine"


def stand_in():
    """The names that the tests take from torchvision."""
    import torch
    from torch import nn

    class FakeData:
        """Noise with labels; an item depends on its index alone."""

        def __init__(self, size, image_size, num_classes, transform):
            self.size, self.image_size, self.num_classes, self.transform = size, image_size, num_classes, transform

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
            self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

        def __call__(self, image):
            return (image - self.mean) / self.std

    def network(weights=None):
        """What Opacus refuses and knows how to replace. It clones by pickling, so no class of our own."""
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


def install(name):
    """Puts the engine where the tests look for it; the class counts how many were made."""
    import opacus.privacy_engine

    module, _, attribute = name.partition(":")
    base = getattr(importlib.import_module(module), attribute)
    fixed = {} if base is opacus.PrivacyEngine else {"mechanism": "dp-sgd"}

    class PrivacyEngine(base):
        made = 0

        def __init__(self, **arguments):
            PrivacyEngine.made += 1
            super().__init__(**fixed, **arguments)

    opacus.PrivacyEngine = opacus.privacy_engine.PrivacyEngine = PrivacyEngine
    return PrivacyEngine


def modules():
    """The names of all modules of opacus.tests, and whether an engine is named in them."""
    import opacus.tests

    for found in pkgutil.walk_packages(opacus.tests.__path__, "opacus.tests."):
        source = found.module_finder.find_spec(found.name).loader.get_source(found.name)
        if not found.ispkg and ("unittest" in source or "PrivacyEngine" in source):
            yield found.name, "PrivacyEngine" in source


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


def load(module, engine):
    """The tests of a module, by name; it must have taken our engine."""
    loaded = importlib.import_module(module)
    used = [v for v in vars(loaded).values() if inspect.isclass(v) and v.__name__.startswith("PrivacyEngine")]
    if not any(issubclass(v, engine) for v in used):
        raise RuntimeError(f"{module} does not see the engine")
    for case in cases(unittest.defaultTestLoader.loadTestsFromModule(loaded)):
        yield case.id().removeprefix("opacus.tests."), case


def seed(name):
    import numpy as np
    import torch

    number = zlib.crc32(name.encode())
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (the global state is what their code would draw from)
    torch.manual_seed(number)


def run(case, name):
    """What became of one test, and what it had to say."""
    seed(name)
    result, printed = unittest.TestResult(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        unittest.TestSuite([case]).run(result)
    if result.failures or result.errors:
        return "failed", "\n".join(text for _, text in result.failures + result.errors)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    if "not ran" in printed.getvalue():  # they catch ImportError, print this and pass
        return "skipped", printed.getvalue().strip()
    return "passed", ""


def reason(name):
    """The line of NOT_APPLICABLE that covers a test."""
    return next((key for key in NOT_APPLICABLE if fnmatch(name, key) or fnmatch(name, f"{key}.*")), None)


def measure(arguments, log):
    """Runs what applies, and tells about the rest."""
    engine = install(arguments.engine)
    report = {"engine": arguments.engine, "modules": [], "failures": {}, "not applicable": {}, "without": []}
    covered = dict.fromkeys(NOT_APPLICABLE, 0)
    for module, named in modules():
        short = module.removeprefix("opacus.tests.")
        if not named:
            report["without"].append(short)
            continue
        counts, made, began = {"passed": 0, "failed": 0, "not applicable": 0}, engine.made, time.perf_counter()
        for name, case in load(module, engine):
            if arguments.pattern and not any(fnmatch(name, f"*{p}*") for p in arguments.pattern):
                continue
            key = None if arguments.all else reason(name)
            if key:
                outcome, text = "not applicable", NOT_APPLICABLE[key]
                covered[key] += 1
            else:
                outcome, text = run(case, name)
            if outcome == "skipped":
                outcome, text = "failed", f"skipped, and not in NOT_APPLICABLE: {text}"
            counts[outcome] += 1
            if outcome == "failed":
                report["failures"][name] = text
            if arguments.verbose:
                print(f"{outcome:15}{name}", file=log, flush=True)
        if not sum(counts.values()):
            continue
        line = {"module": short, **counts, "engines": engine.made - made, "seconds": time.perf_counter() - began}
        report["modules"].append(line)
        if counts["passed"] and not line["engines"] and not arguments.pattern:
            report["failures"][short] = "no test of this module made an engine"
        described = ", ".join(f"{counts[k]:3} {k}" for k in counts)
        print(f"{short:40} {described}, {line['engines']:4} engines, {line['seconds']:5.1f} s", file=log, flush=True)
    for key, tests in covered.items():
        if tests:
            report["not applicable"][key] = {"tests": tests, "reason": NOT_APPLICABLE[key]}
        elif not arguments.pattern and not arguments.all:
            report["failures"][key] = "in NOT_APPLICABLE, and there is no such test"
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="antiphase.torch:PrivacyEngine", metavar="module:Class")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--all", action="store_true", help="also what does not apply, to see how it fails")
    parser.add_argument("-v", "--verbose", action="store_true", help="every test, and every warning")
    parser.add_argument("pattern", nargs="*", help="only tests whose module.Class.method contains it")
    arguments = parser.parse_args()

    import torch
    from hypothesis import settings

    torch.set_num_threads(1)  # sums in the same order everywhere
    if not arguments.verbose:
        warnings.simplefilter("ignore")
    # Before the tests are imported: their decorators start from the profile that they find.
    settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=EXAMPLES)
    settings.load_profile("repeatable")
    stand_in()

    report = measure(arguments, sys.stderr if arguments.json else sys.stdout)
    passed, away = (sum(m[k] for m in report["modules"]) for k in ("passed", "not applicable"))
    failed = len(report["failures"])
    last = report["summary"] = f"privacy engine: {passed} passed, {failed} failed, {away} not applicable"
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print("\nNot applicable:")
        for key, line in report["not applicable"].items():
            print(f"  {key} ({line['tests']}): {line['reason']}")
        for name in report["without"]:
            print(f"  {name}: {NEVER}")
        for name, text in report["failures"].items():
            print(f"\nFAILED {name}\n{text}")
        if passed + failed < LEAST:
            print(f"\nfewer than {LEAST} tests ran")
        print(f"\n{last}")
    return 0 if not failed and passed >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
