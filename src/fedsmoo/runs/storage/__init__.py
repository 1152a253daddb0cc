"""A run on the disk: its folder, its checkpoints, its label, and the lease of the process that works on it."""
