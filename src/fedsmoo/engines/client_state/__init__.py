"""What clients keep between rounds: where it lies, and how much memory it takes."""
