"""The folder ``deployment``: say here what it is for."""
