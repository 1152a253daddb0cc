"""One run: its settings, its rounds, its folder, and how it is stopped, resumed, tracked and measured.

``build.assemble`` makes a ``simulation.Simulation`` of a ``config.Config``; its ``advance`` carries out one round.
``run`` does so in a folder, and ``resume`` goes on there.
"""
