"""Errors and warnings of antiphase.

Bad arguments raise ``ValueError`` and ``TypeError``, as usual in Python. The classes here are for
failures that a program may want to tell apart.
"""


class AntiphaseError(Exception):
    """Base class of the errors that are specific to antiphase."""


class AntiphaseWarning(UserWarning):
    """Base class of the warnings: training continues, but a stated condition needs attention."""


class FileFormatError(AntiphaseError, ValueError):
    """A file is not one of ours, is damaged, was altered, or comes from a newer version."""


class DataError(AntiphaseError, ValueError):
    """A dataset could not be obtained or stored, or has unexpected content.

    Nothing that is half-written is left behind.
    """


class TooLargeError(AntiphaseError, MemoryError):
    """A dense T × T array would not fit in memory."""


class HorizonError(AntiphaseError, RuntimeError):
    """More rows of noise were requested than the mechanism was planned for. None was drawn."""


class KeyFileError(AntiphaseError, ValueError):
    """A key file is damaged, can be read by others, or does not contain the run to resume."""


class StateError(AntiphaseError, ValueError):
    """The state of a noise stream is damaged, or belongs to another mechanism."""


class ParticipationError(AntiphaseError, RuntimeError):
    """An example would take part more often, sooner or in other steps than the plan allows.

    Nothing was released.
    """


class ReplayError(AntiphaseError, RuntimeError):
    """A step whose noise was drawn before would be released again with other data.

    Nothing was released.
    """


class BypassError(AntiphaseError, RuntimeError):
    """Gradients without noise would have reached the model."""


class SettingsError(AntiphaseError, RuntimeError):
    """A setting that the guarantee depends on was changed after make_private.

    Nothing was released.
    """


class PerExampleGradientError(AntiphaseError, ValueError):
    """Per-example gradients cannot be separated, or are wrong. Nothing was released."""


class ModelChangedError(AntiphaseError, RuntimeError):
    """A forward or backward pass changed parameters or buffers of the model.

    Nothing was released.
    """
