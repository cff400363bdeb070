"""Figures. Nothing here is imported by the rest of the library."""
