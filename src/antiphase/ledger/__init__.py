"""Ledgers: who took part in which step, and what was released with which row of noise."""
