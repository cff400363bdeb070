"""Recommend a mechanism for a setting, with reasons."""

from antiphase.recommendation.result import Gain, LearningRateRange, Recommendation
from antiphase.recommendation.selection import recommend

__all__ = ["Gain", "LearningRateRange", "Recommendation", "recommend"]
