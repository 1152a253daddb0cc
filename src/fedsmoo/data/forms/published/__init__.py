"""Published data sets with clients of their own: where they come from, and their readers."""
