"""The paper's figures and tables: one study per file, run by `python -m experiments NAME`.

A study computes results, keeps them as JSON, and draws figures and tables from them (see `runner`).
"""

# The studies, in the paper's order: modules of this package with the names of `runner.Study`.
NAMES = ("matrices", "quadratic", "chess", "mnist", "amplified", "cifar10", "scattering", "text")
