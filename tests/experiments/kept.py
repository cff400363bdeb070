"""Data sets for a whole study, or the reason why there are none."""

from contextlib import contextmanager

import pytest

from antiphase import data
from antiphase.errors import DataError


@contextmanager
def cached(folder, *names):
    """Designs and these data sets are kept in ``folder`` between tests, and between the processes of a study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHASE_CACHE", str(folder))
        try:
            for name in names:
                data.load(name)
        except DataError as error:
            pytest.skip(str(error))
        yield
