"""The folder ``page``: say here what it is for."""
