"""Parts of the scripts beside: jobs to time, and what is compiled."""
