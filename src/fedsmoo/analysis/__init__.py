"""Why it works: curvature, landscapes, consistency of clients, and the bound of the paper's theorem.

A file here is a measurement, a subclass of ``measurement.Measurement``, which ``measurements()`` finds by itself;
``functions`` has what they compute, and ``probes`` measures runs in progress.
"""
