"""Audits: lower bounds on the privacy loss of a training, from many trials or from one run."""
