"""Recurrent layers with a client axis: a launch for each time step, or one for all."""
