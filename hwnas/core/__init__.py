"""The folder ``core``: say here what it is for."""
