"""antiphase: differentially private training with noise that cancels itself over the steps."""

from antiphase import objective, participation, sampling
from antiphase.band_selection import BandSelection, select_bands
from antiphase.comparison import Comparison, compare
from antiphase.design import design, names
from antiphase.errors import (
    AntiphaseError,
    AntiphaseWarning,
    BypassError,
    DataError,
    FileFormatError,
    HorizonError,
    KeyFileError,
    ParticipationError,
    ReplayError,
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
    "Comparison",
    "DataError",
    "Factorization",
    "FileFormatError",
    "HorizonError",
    "Key",
    "KeyFileError",
    "Mechanism",
    "Objective",
    "Participation",
    "ParticipationError",
    "PrivacyStatement",
    "Recommendation",
    "ReplayError",
    "StateError",
    "TooLargeError",
    "Workload",
    "calibrate",
    "compare",
    "design",
    "epochs",
    "load",
    "min_separation",
    "names",
    "objective",
    "once",
    "participation",
    "recommend",
    "sampling",
    "select_bands",
    "sensitivity",
]
