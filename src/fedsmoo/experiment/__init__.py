"""From a config to a run folder: settings, rounds, records."""
