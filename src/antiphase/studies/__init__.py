"""The paper's experiments, one readable file each: results as JSON, figures drawn from it."""
