"""The folder ``pareto``: say here what it is for."""
