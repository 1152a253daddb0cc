"""Decoding: from items to arrays, once, in files that are mapped into memory and kept."""
