"""Latency models of devices that are not connected, fitted to few measured networks."""
