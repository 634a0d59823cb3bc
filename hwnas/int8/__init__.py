"""Networks in 8-bit integers: how they are quantised and written."""
