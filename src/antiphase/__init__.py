"""antiphase: differentially private training with noise that is correlated across steps."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphase import accounting, auditing, objective, participation, sampling, theory
    from antiphase.band_selection import BandSelection, select_bands
    from antiphase.comparison import Candidate, Comparison, Setting, compare
    from antiphase.design import design, designs
    from antiphase.errors import (
        AntiphaseError,
        AntiphaseWarning,
        BypassError,
        DataError,
        FileFormatError,
        HorizonError,
        KeyFileError,
        ModelChangedError,
        ParticipationError,
        PerExampleGradientError,
        ReplayError,
        SettingsError,
        StateError,
        TooLargeError,
    )
    from antiphase.factorizations import Factorization
    from antiphase.mechanism import Mechanism, calibrate, load
    from antiphase.noise import Key
    from antiphase.noise.stream import NoiseStream
    from antiphase.objective import Objective
    from antiphase.participation import Participation, epochs, min_separation, once
    from antiphase.recommendation import Recommendation, recommend
    from antiphase.sensitivity import sensitivity
    from antiphase.statement import PrivacyStatement
    from antiphase.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "AntiphaseError", "AntiphaseWarning", "BandSelection", "BypassError", "Candidate",
    "Comparison", "DataError", "Factorization", "FileFormatError", "HorizonError", "Key",
    "KeyFileError", "Mechanism", "ModelChangedError", "NoiseStream", "Objective",
    "Participation", "ParticipationError", "PerExampleGradientError", "PrivacyStatement",
    "Recommendation", "ReplayError", "Setting", "SettingsError", "StateError", "TooLargeError",
    "Workload", "accounting", "auditing", "calibrate", "compare", "design", "designs", "epochs",
    "load", "min_separation", "objective", "once", "participation", "recommend", "sampling",
    "select_bands", "sensitivity", "theory",
]  # fmt: skip

# Imported when first used, so that the command line starts at once: {module: its public names}.
_SOURCES = {
    name: module
    for module, names in {
        "band_selection": "BandSelection select_bands",
        "comparison": "Candidate Comparison Setting compare",
        "design": "design designs",
        "errors": "AntiphaseError AntiphaseWarning BypassError DataError FileFormatError "
        "HorizonError KeyFileError ModelChangedError ParticipationError PerExampleGradientError "
        "ReplayError SettingsError StateError TooLargeError",
        "factorizations": "Factorization",
        "mechanism": "Mechanism calibrate load",
        "noise": "Key",
        "noise.stream": "NoiseStream",
        "objective": "Objective",
        "participation": "Participation epochs min_separation once",
        "recommendation": "Recommendation recommend",
        "sensitivity": "sensitivity",
        "statement": "PrivacyStatement",
        "workload": "Workload",
    }.items()
    for name in names.split()
}


class _Package(ModuleType):
    """The package: its functions `design` and `sensitivity` hide the modules of these names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SOURCES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    module = f"{__name__}.{_SOURCES.get(name, name)}"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if name in _SOURCES:
        found = getattr(found, name)
        setattr(sys.modules[__name__], name, found)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
