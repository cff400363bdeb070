"""Ways to fail that have a name of their own.

Bad arguments are ``ValueError`` and ``TypeError``, as everywhere in Python; what is here says more than that.
"""


class AntiphaseError(Exception):
    """Base of every error that is particular to antiphase."""


class AntiphaseWarning(UserWarning):
    """Base of every warning of antiphase: training goes on, but a stated condition needs attention."""


class FileFormatError(AntiphaseError, ValueError):
    """A file is not one of ours, is damaged, was altered, or comes from a newer version."""


class DataError(AntiphaseError, ValueError):
    """A data set cannot be had, cannot be stored, or is not what it should be. Nothing half-written stays."""


class TooLargeError(AntiphaseError, MemoryError):
    """A dense T × T array was asked for that would not fit in memory."""


class HorizonError(AntiphaseError, RuntimeError):
    """More rows of noise were asked for than the mechanism was planned for. Nothing was drawn."""


class KeyFileError(AntiphaseError, ValueError):
    """A key file is damaged, can be read by others, or does not know the run that is to go on."""


class StateError(AntiphaseError, ValueError):
    """The state of a noise stream is damaged, or belongs to another mechanism."""


class ParticipationError(AntiphaseError, RuntimeError):
    """An example would take part more often, sooner or elsewhere than the plan allows. Nothing was released."""


class ReplayError(AntiphaseError, RuntimeError):
    """A step whose noise was drawn before would be released again with other data. Nothing was released."""


class BypassError(AntiphaseError, RuntimeError):
    """Gradients without noise were about to reach the model."""


class SettingsError(AntiphaseError, RuntimeError):
    """A setting that the promise rests on was changed after make_private. Nothing was released."""


class PerExampleGradientError(AntiphaseError, ValueError):
    """The gradients of single examples cannot be told apart, or come out wrong. Nothing was released."""


class ModelChangedError(AntiphaseError, RuntimeError):
    """A forward or backward pass wrote into parameters or buffers of the model. Nothing was released."""
