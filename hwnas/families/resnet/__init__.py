"""The family of residual networks."""
