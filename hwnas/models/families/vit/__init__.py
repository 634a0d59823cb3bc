"""The folder ``vit``: say here what it is for."""
