"""What is found out about a model by a few samples: whether it fits its data, and how much memory a sample takes."""
