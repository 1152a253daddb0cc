"""How good a model's outputs are.

``metric.make_metrics`` returns metrics by name, ``functions`` has what they compute, and ``tally`` adds it up over
batches. ``quantity`` says which of two values is better, and how values are written.
"""
