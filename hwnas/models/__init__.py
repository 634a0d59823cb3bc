"""The folder ``models``: say here what it is for."""
