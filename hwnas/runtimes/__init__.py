"""Runtimes that execute a network on this host or on a device."""
