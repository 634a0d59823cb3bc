"""Comparison of fronts: indicators, significance, speedup, figures and pages."""
