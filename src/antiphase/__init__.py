"""antiphase: differentially private training with noise that is correlated across steps."""

from typing import Any

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
from antiphase.objective import Objective
from antiphase.participation import Participation, epochs, min_separation, once
from antiphase.recommendation import Recommendation, recommend
from antiphase.sensitivity import sensitivity
from antiphase.statement import PrivacyStatement
from antiphase.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "AntiphaseError",
    "AntiphaseWarning",
    "BandSelection",
    "BypassError",
    "Candidate",
    "Comparison",
    "DataError",
    "Factorization",
    "FileFormatError",
    "HorizonError",
    "Key",
    "KeyFileError",
    "Mechanism",
    "ModelChangedError",
    "NoiseStream",
    "Objective",
    "Participation",
    "ParticipationError",
    "PerExampleGradientError",
    "PrivacyStatement",
    "Recommendation",
    "ReplayError",
    "Setting",
    "SettingsError",
    "StateError",
    "TooLargeError",
    "Workload",
    "accounting",
    "auditing",
    "calibrate",
    "compare",
    "design",
    "designs",
    "epochs",
    "load",
    "min_separation",
    "objective",
    "once",
    "participation",
    "recommend",
    "sampling",
    "select_bands",
    "sensitivity",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name == "NoiseStream":
        from antiphase.noise.stream import NoiseStream  # slow to import: it needs Numba

        return NoiseStream
    raise AttributeError(f"module 'antiphase' has no attribute {name!r}")
