"""The family of vision transformers."""
