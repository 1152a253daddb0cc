"""Seconds and memory of rounds on one GPU."""
