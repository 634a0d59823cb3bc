"""Performance claims as scripts; results in README.md."""
