"""The folder ``profiling``: say here what it is for."""
