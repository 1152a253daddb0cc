"""Running statistics of models (BatchNorm): steps that change them, and batches whose samples see each other."""
