"""Convolutions of any shape with a client axis, as implicit matrix products: forward, data and weight gradients."""
