"""Measurement kits: networks and a script that times them on a device without hwnas."""
