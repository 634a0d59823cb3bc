"""Latency tables: measured operators of a target, and the machine they belong to."""
