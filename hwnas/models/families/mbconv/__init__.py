"""The folder ``mbconv``: say here what it is for."""
