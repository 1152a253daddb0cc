"""Where samples come from and who holds them.

``sources.load`` returns a ``Dataset`` by its name, ``forms.read_data`` from an object of another library. ``division``
gives every client its samples, ``batches`` draws a round's cohort, its batches and their augmentation.
"""
