"""Whoever looks on while a run goes on: callbacks with its state, and what they changed on the way."""
