"""Parts of the scripts that hold the package to itself: hashes.py, crossings.py and startup.py."""
