"""Import antiphase with a mutant in place of one of its files.

Every mutant has a forked process. Third-party libraries (torch, Opacus, Numba, …) are imported
before the fork, antiphase and the tests after it. So a mutant applies wherever its names are
imported: in classes, decorators, tables and constants.
"""

import ast
import builtins
import importlib
import importlib.machinery
import importlib.util
import sys
from contextlib import suppress

from cosmic_ray.exceptions import CosmicRayTestingException

from tests.mutation.mutate import PACKAGE

HEAVY = (
    "numpy", "scipy.fft", "scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.special",
    "scipy.stats", "numba", "randomgen", "safetensors.numpy", "platformdirs",
    "dp_accounting.pld.privacy_loss_distribution", "matplotlib.pyplot", "rich.console", "typer",
    "jinja2", "doctest", "mpmath", "hypothesis", "torch", "opacus", "opacus.validators",
    "opacus.utils.batch_memory_manager", "flwr.app", "sklearn.datasets",
)  # fmt: skip


def warm_up():
    """Import third-party libraries, and let Numba compile a first function.

    There must be no backward pass before the fork: its threads would not survive.
    """
    for name in HEAVY:
        with suppress(ImportError):  # some are extras
            importlib.import_module(name)
    import numba
    import numpy as np
    import torch

    torch.set_num_threads(1)

    @numba.njit
    def first(numbers):
        bits = numbers.view(np.int32)
        for i in range(len(bits)):
            bits[i] >>= np.int32(1)
        return np.sqrt(abs(numbers[0]))

    first(np.zeros(4, np.float32))


def install(mutant):
    """Make the next import of the mutant's module load its source."""
    builtins.CosmicRayTestingException = CosmicRayTestingException  # some mutants catch it
    for name in [name for name in sys.modules if name.split(".")[0] == "antiphase"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(mutant))
    if mutant.file.startswith("noise/"):
        _compile_anew(affected(mutant.file, mutant.source))


class _Finder:
    def __init__(self, mutant):
        self.mutant = mutant
        self.name = f"antiphase.{mutant.file.removesuffix('.py').replace('/', '.')}"

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        loader = _Loader(name, str(PACKAGE / self.mutant.file))
        loader.source = self.mutant.source
        return importlib.util.spec_from_file_location(name, loader.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return compile(self.source, self.path, "exec", dont_inherit=True)


# ---- kernels -------------------------------------------------------------------------------------


def affected(file, source):
    """Top-level names of `noise/` that depend on what the mutant changes there."""
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in (PACKAGE / "noise").glob("*.py")
    }
    pairs = zip(trees[file].body, ast.parse(source).body, strict=True)
    differ = [new for old, new in pairs if ast.dump(old) != ast.dump(new)]
    changed = {name for node in differ for name in _defines(node)}
    nodes = [node for tree in trees.values() for node in tree.body]
    uses = {name: _uses(node) for node in nodes for name in _defines(node)}
    while more := {name for name, used in uses.items() if used & changed} - changed:
        changed |= more
    return changed


def _defines(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    inner = [n for target in targets if target for n in ast.walk(target)]
    return {n.id for n in inner if isinstance(n, ast.Name)}


def _uses(node):
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _compile_anew(names):
    """Compile changed kernels without Numba's cache.

    Its keys are bytecode, which does not contain constants and other kernels.
    """
    from numba.core.caching import NullCache

    modules = [f"antiphase.noise.{path.stem}" for path in (PACKAGE / "noise").glob("[!_]*.py")]
    for module in map(importlib.import_module, modules):
        for name, kernel in vars(module).items():
            if hasattr(kernel, "py_func") and name in names:
                kernel._cache = NullCache()
