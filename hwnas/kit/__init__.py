"""Kits: networks to measure on a device that is out of reach, with a script that needs nothing."""
