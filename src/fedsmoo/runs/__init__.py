"""One run: its settings, its rounds, its folder, and how it is stopped, resumed, tracked and measured.

``merge.make_config`` makes a ``config.Config`` of what a file and settings say, ``build.assemble`` of that a
``simulation.Simulation``, whose ``advance`` carries out one round.
``run`` does so in a folder, and ``resume`` goes on there.
"""
