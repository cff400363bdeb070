"""Internal helpers: argument checks, frozen values, safe files, locks."""
