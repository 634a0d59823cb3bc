"""Builds latency tables: tune and time operators, calibrate on whole networks, report the error."""
