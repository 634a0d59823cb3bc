"""The search itself, and the verification of its front."""
