"""How good a model's outputs are: metrics by name, which of two values is better, and how values are written."""
