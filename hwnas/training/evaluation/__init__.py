"""The folder ``evaluation``: say here what it is for."""
