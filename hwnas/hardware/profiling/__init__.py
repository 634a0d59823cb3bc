"""Profiling: tunes and times operators until a latency table is complete."""
