"""What each command does, one module each; ``cli.py`` only gathers them."""
