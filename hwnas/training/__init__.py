"""The folder ``training``: say here what it is for."""
