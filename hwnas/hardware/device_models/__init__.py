"""The folder ``device_models``: say here what it is for."""
