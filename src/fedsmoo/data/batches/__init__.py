"""What a round trains on: its cohort, each client's batches, and how samples are augmented."""
