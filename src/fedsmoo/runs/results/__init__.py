"""A run when it is done: its result in Python, and its folder opened again for measurements."""
