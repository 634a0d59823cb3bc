"""Timing of operators and networks: benches, worker processes and device pools."""
