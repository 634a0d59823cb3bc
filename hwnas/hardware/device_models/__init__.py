"""Latency models of devices that are not connected, fitted to a few measured networks."""
