"""Mutations of the sources and the tests that notice them; ``benchmarks/mutants.py`` is the command."""
