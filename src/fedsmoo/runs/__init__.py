"""One run: its settings, its rounds, its folder, and how it is stopped, resumed, tracked and measured."""
