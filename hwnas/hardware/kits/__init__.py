"""The folder ``kits``: say here what it is for."""
