"""Other simulators beside ours, on the same work."""
