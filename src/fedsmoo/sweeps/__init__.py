"""Many runs: a grid from one file, worked through alone or with others, indexed, compared, kept as results."""

METHODS = "fedavg,scaffold,feddyn,fedsam,fedsmoo"  # which are compared, if nobody says
