"""Operators with a client axis: C layers, each with weights of its own, as one call.

:mod:`fedsmoo.operators.functional` has them for use by hand.
"""
