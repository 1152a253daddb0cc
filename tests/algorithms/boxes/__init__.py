"""Literal transcriptions of the papers' algorithm boxes, and the package checked against them."""
