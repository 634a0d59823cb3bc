"""Cost models: latency, energy and memory of a network on a target."""
