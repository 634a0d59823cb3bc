"""The folder ``latency_tables``: say here what it is for."""
