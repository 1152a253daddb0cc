"""Many runs: a grid from one file, worked through alone or with others, indexed, compared, kept as results.

``grid.expand`` makes configs of a table, ``queue.work_at`` carries them out in their folders, and ``pack`` several as
one batch. ``results`` and ``index`` read finished runs; ``compare`` and ``paired`` set methods side by side.
"""

METHODS = "fedavg,scaffold,feddyn,fedsam,fedsmoo"  # which are compared, if nobody says
