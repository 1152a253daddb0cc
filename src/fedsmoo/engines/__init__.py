"""Who runs the local steps, and where client state lives."""
