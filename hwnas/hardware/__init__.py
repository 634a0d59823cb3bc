"""Target hardware: backends, runtimes, cost models, latency tables, meters and profiling."""
