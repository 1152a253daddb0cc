"""Random numbers: named streams for the host, counter-based noise for any device."""
