"""The paper's experiments, one readable file each: results as JSON, figures drawn from it. `running` runs them."""

# What `antiphase reproduce` knows, in the paper's order: modules of this package, each a `running.Study`.
NAMES = ("matrices", "quadratic", "chess", "mnist", "amplified", "cifar10", "scattering", "text")
