"""What measures, checks and reports the package: README.md lists the rooms and their commands."""
