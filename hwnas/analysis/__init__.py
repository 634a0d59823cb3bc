"""The folder ``analysis``: say here what it is for."""
