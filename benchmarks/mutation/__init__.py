"""Mutations of the sources and the tests that notice them; ``benchmarks/mutation/mutants.py`` is the command."""
