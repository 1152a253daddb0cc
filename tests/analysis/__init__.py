"""Measurements against dense computations, closed forms and invariances."""
