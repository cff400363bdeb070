"""Ledgers: who took part in which step, and what was released with which row of noise."""

from antiphase.ledger.participation import ParticipationLedger
from antiphase.ledger.write_ahead import WriteAheadLedger

__all__ = ["ParticipationLedger", "WriteAheadLedger"]
