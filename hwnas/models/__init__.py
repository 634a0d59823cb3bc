"""Networks: search spaces, families, graphs, int8 networks and model file formats."""
