"""The family of inverted residuals."""
