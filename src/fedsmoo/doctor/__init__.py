"""Look at a machine as a run will find it: what is there, what is slow and why, and what to type next."""
