"""The folder ``int8``: say here what it is for."""
