"""Norms with a client axis: of groups of channels, forward and backward, and of rows, backward."""
