"""Measurement of operators and networks, and the latency tables that follow from them."""
