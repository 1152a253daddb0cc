"""Figures: curves, surfaces and divisions for papers."""
