"""General building blocks: errors, quantities with intervals, files, processes, statistics."""
