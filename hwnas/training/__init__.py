"""Data, and how supernets are trained."""
