"""Side by side with the peers: one file a question, all of them in one run. ``python -m benchmarks --help``."""
