"""The folder ``costs``: say here what it is for."""
