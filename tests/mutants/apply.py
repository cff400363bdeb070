"""Put a mutant in the place of a module that is imported already: its code, its defaults and its constants.

Functions stay the objects they are, so whoever imported them has the mutant. Kernels that are not as they were, or see
something that is not, are compiled anew, and nothing of that is kept.
"""

import builtins
import inspect
import sys

import numpy as np
from cosmic_ray.exceptions import CosmicRayTestingException
from numba.core.caching import NullCache

from tests.mutants.mutate import fingerprint

PLAIN = (bool, int, float, str, bytes, tuple, type(None), np.generic)


def put_in(mutant):
    """Returns the names of what was changed."""
    builtins.CosmicRayTestingException = CosmicRayTestingException  # what mutants catch in place of something else
    name = f"antiphase.{mutant.file.removesuffix('.py').replace('/', '.')}"
    module = sys.modules[name]
    fresh = {"__name__": name, "__file__": module.__file__}
    exec(compile(mutant.source, module.__file__, "exec"), fresh)  # noqa: S102
    changes = list(_changes(module, fresh))
    for owner, attribute, old, new in changes:
        if inspect.isfunction(old):
            old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        else:
            for place in [owner, *_importers(attribute, old)]:
                setattr(place, attribute, new)
    changed = {attribute for _, attribute, _, _ in changes}
    for kernel in _kernels():
        if kernel.__name__ in changed or changed & set(kernel.py_func.__code__.co_names):
            if kernel.overloads:
                raise RuntimeError(f"{kernel.__name__} was used before it could be changed")
            kernel._cache = NullCache()
    return changed


def _changes(owner, fresh):
    """(where, name, old, new) of functions, at the bottom of whatever wraps them, and of plain values."""
    for name, new in fresh.items():
        old = vars(owner).get(name)
        if inspect.isclass(new) and new.__module__ == getattr(owner, "__name__", None):
            yield from _changes(old, vars(new))
        elif inspect.isfunction(_bare(new)):
            if _does(_bare(old)) != _does(_bare(new)):
                yield owner, name, _bare(old), _bare(new)
        elif isinstance(new, PLAIN) and not name.startswith("__") and repr(old) != repr(new):
            yield owner, name, old, new


def _bare(thing):
    for wrapper in ("fget", "__func__", "py_func", "_defn", "__wrapped__"):
        thing = getattr(thing, wrapper, None) or thing
    return thing


def _does(function):
    return fingerprint(function.__code__), repr(function.__defaults__), repr(function.__kwdefaults__)


def _importers(name, value):
    """Other modules of the package that have a constant by its name."""
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("antiphase")]
    return [module for module in modules if name in vars(module) and vars(module)[name] is value]


def _kernels():
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("antiphase.noise")]
    return {id(v): v for module in modules for v in vars(module).values() if hasattr(v, "py_func")}.values()
