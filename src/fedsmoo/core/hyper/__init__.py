"""Hyper-parameters: how they are declared, and numbers that move with the round."""
