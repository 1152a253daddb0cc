"""Where a run comes from: the settings and files that make it what it is, the code and the machine that made it."""
