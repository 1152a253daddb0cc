"""Operators with a client axis: C layers, each with weights of its own, as one call."""
