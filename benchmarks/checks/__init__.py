"""What holds the package to itself: bits, rooms, the tests, and how quick commands are."""
