"""Questions that a few runs or models answer with numbers that are no times."""
