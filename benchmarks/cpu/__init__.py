"""Seconds of training on a CPU, on several processes, and in a federation on this machine."""
