"""Convolutions with groups, as operators with a client axis, and which operators a convolution takes."""
