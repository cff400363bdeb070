"""Federated training with user-level privacy: a server free of any framework, and `antiphase.federated.flower`."""

from antiphase.federated.roster import smallest_population
from antiphase.federated.server import Server, Verdict

__all__ = ["Server", "Verdict", "smallest_population"]
