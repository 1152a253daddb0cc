"""Forms that data comes in: arrays, torch, HuggingFace, pandas, LEAF, Flower; each becomes a ``Dataset``."""

from fedsmoo.data.forms.read import read_data

__all__ = ["read_data"]
