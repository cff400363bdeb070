"""Ledgers: participations, and what was released under each row of noise."""

from antiphase.ledger.participation import ParticipationLedger
from antiphase.ledger.write_ahead import WriteAheadLedger

__all__ = ["ParticipationLedger", "WriteAheadLedger"]
