"""The folder ``hardware``: say here what it is for."""
