"""Move a model's weights from the layout a trainer holds to the one an inference engine wants."""
