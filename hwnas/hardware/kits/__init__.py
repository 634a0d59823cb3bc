"""Measurement kits: networks and a script for a device that is not connected."""
