"""Internal helpers: argument checks, immutable values, safe files, locks."""
