"""The ways to refit that are compared: one file per method, the same interface for all."""
