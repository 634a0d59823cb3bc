"""The folder ``nas``: say here what it is for."""
