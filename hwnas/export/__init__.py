"""Export: what leaves for the device, and the proof of what is said of it."""
