"""The folder ``fleet``: say here what it is for."""
