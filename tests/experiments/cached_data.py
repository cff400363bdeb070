"""Data sets of a study, or a skip where they cannot be downloaded."""

from contextlib import contextmanager

import pytest

from antiphase import data
from antiphase.errors import DataError


@contextmanager
def cached(folder, *names):
    """Cache designs and data sets in ``folder`` for the tests and processes of a study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHASE_CACHE", str(folder))
        try:
            for name in names:
                data.load(name)
        except DataError as error:
            pytest.skip(str(error))
        yield
