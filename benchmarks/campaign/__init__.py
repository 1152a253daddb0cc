"""The plan of the paper's runs, what became of them, and tables over all of its columns."""
