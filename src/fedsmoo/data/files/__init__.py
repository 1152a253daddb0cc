"""From files to arrays: archives, pickles, downloads, and a cache of what was decoded."""
