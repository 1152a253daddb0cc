"""Past one process: the same methods as a real federation of clients, by Flower."""
