"""The folder ``workflows``: say here what it is for."""
