"""The folder ``meters``: say here what it is for."""
