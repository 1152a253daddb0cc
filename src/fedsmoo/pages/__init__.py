"""Pages: a report of run folders in one file, and the same page live."""
