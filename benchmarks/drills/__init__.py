"""Drills: what could go wrong is made to go wrong, and what was promised has to hold (docs/reliability.md).

A drill is a module of this folder with a function ``drill(full: bool, seed: int)`` that yields outcomes::

    {"drill": "a run, killed", "tried": 120, "held": 120, "failures": []}

``drill`` is what the row of the table is called, and ``failures`` has a line for each try that did not hold. ``full``
asks for every case; else a sample, drawn from the seed, that takes a minute or two. ``run.py`` finds the modules, runs
each in a process of its own, and makes the table.
"""
