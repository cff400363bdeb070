"""Cyclic Poisson sampling: amplification for banded encoders."""

from __future__ import annotations

from functools import cached_property

from antiphase.accounting.poisson import PoissonAccountant


class CyclicPoissonAccountant(PoissonAccountant):
    """Banded encoders, with records divided into as many groups as there are bands.

    Records are assigned to ``p`` groups once, and step t samples from group ``t mod p`` at p times
    the rate. The columns that one record can contribute to then share no row, so it sees ``⌈T/p⌉``
    rounds of DP-SGD at the largest column norm.

    References:
        Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization.
    """

    def _refuse_unanalysed(self) -> None:
        participation = self._factorization.participation
        rounds = -(-self._factorization.steps // self.groups)
        if (
            participation.fixed_order
            or participation.max_participations < rounds
            or participation.separation > self.groups
        ):
            raise ValueError(
                f"participation = {participation!r}: cyclic Poisson sampling may take a record in "
                f"every {self.groups}-th step; design for "
                f"participation=min_separation({rounds}, apart={self.groups})"
            )
        # PRIVACY: a group that is asked for more records than it has is no Poisson sample.   [G9]
        if self.groups * self._rate > 1:
            raise ValueError(
                f"sampling_rate = {self._rate:g}: with {self.groups} bands each group has "
                f"1/{self.groups} of the records, so the rate is at most {1 / self.groups:g}; use "
                "fewer bands"
            )

    @cached_property
    def groups(self) -> int:
        """As many as the encoder has bands."""
        # PRIVACY: as many groups as bands, so that columns of one group share no row.   [G9]
        return self._factorization.bands

    def caveat(self) -> str:
        """The assignment to groups is independent of the data."""
        return (
            f"Records were assigned to {self.groups} groups independently of their content, and "
            "never change their group."
        )
