"""How results are shown in notebooks: `antiphase.reporting` renders them, when they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphase.reporting.figures import ChartFigure


class Displayed:
    """Base of results that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        from antiphase.reporting import display

        return display.html(self)


class Plotted(Displayed):
    """Base of results that can also be drawn."""

    def plot(self, chart: str = "noise") -> ChartFigure:
        """Draw a chart by Matplotlib.

        Args:
            chart: ``"noise"`` in each iterate; ``"spectrum"``, the power of the added noise by
                frequency; for a factorization also ``"matrices"``, heat maps of C, C⁻¹ and B; for a
                comparison also ``"memory"`` and ``"time"``, the noise against its cost.

        Returns:
            A Matplotlib figure. A notebook shows it; ``savefig`` writes it to a file.

        Raises:
            ImportError: Matplotlib is not installed.
            ValueError: there is no such chart of this result.

        Example:
            >>> from antiphase import design
            >>> figure = design("dp-mf", steps=64).plot("matrices")
            >>> figure.savefig("matrices.png")  # doctest: +SKIP
        """
        from antiphase.reporting import display

        return display.figure(self, chart)
