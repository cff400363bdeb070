"""Federated training with user-level privacy: a server, and Flower."""

from antiphase.federated.roster import min_population
from antiphase.federated.server import Server, Verdict

__all__ = ["Server", "Verdict", "min_population"]
