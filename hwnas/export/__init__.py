"""The folder ``export``: say here what it is for."""
