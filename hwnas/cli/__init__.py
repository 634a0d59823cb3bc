"""The folder ``cli``: say here what it is for."""
