"""Runtimes: networks loaded in worker processes, on this machine or a remote device."""
