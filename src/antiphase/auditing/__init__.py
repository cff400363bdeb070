"""Privacy audits: empirical lower bounds on the privacy loss of a training.

A *canary* is a record that is as easy to detect as a record can be. An audit trains with it and
without it, scores how likely its presence is, and compares the errors of a threshold test on the
scores with the errors that the claim allows. See `audit` for many small trainings and
`audit_one_run` for a single one.

An audit can show that a claim is false. It cannot show that a claim is true: a better canary,
another score or more trials may detect what this audit missed.

References:
    Nasr et al. (2023), Tight auditing of differentially private machine learning.
    Steinke, Nasr and Jagielski (2023), Privacy auditing with one (1) training run.
    Mahloujifar, Melis and Chaudhuri (2024), Auditing f-differential privacy in one run.
"""

from antiphase.auditing.canaries import MechanismTrials
from antiphase.auditing.claims import ApproximateClaim, Claim, GaussianClaim, claim_of
from antiphase.auditing.many_trials import TrialAudit, audit
from antiphase.auditing.one_run import OneRunAudit, audit_one_run
from antiphase.auditing.result import AuditResult

__all__ = [
    "ApproximateClaim",
    "AuditResult",
    "Claim",
    "GaussianClaim",
    "MechanismTrials",
    "OneRunAudit",
    "TrialAudit",
    "audit",
    "audit_one_run",
    "claim_of",
]
