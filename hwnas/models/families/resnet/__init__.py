"""Residual networks of basic or bottleneck blocks."""
