"""Benchmarks against other libraries, one file per question; run by `python -m benchmarks`."""
