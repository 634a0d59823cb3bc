"""Deployment planning: service and fleet files, the optimiser, the simulator and replanning."""
