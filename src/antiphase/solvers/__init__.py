"""Solvers: the search for an encoder, one file each."""
