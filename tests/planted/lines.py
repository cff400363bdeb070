"""Lines that privacy rests on, marked ``# PRIVACY:``, each undone by one change beside its mark; ``test`` must go red.

Those of the files in `tests.mutants`, and those that a bug of `bugs` is about, are not here once more.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    file: str
    old: str
    new: str
    test: str

    @property
    def name(self):
        return f"{self.file}: {self.old}"


LINES: list[Line] = []
