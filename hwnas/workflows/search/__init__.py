"""The folder ``search``: say here what it is for."""
