"""How accurate a candidate is."""
