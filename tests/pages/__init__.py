"""The report page in a real browser, and what it reads."""
