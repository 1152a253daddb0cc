"""Where samples come from (``sources``), who holds them (``partition``) and how a step sees them (``augment``)."""
