"""The folder ``runtimes``: say here what it is for."""
