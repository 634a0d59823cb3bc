"""Targets, backends, runtimes, cost models, latency tables, profiling and energy meters."""
