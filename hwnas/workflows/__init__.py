"""One module per verb: from checked options to a run folder; the Python API."""
