"""Latency tables: measured operators and networks of one target."""
