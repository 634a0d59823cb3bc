"""Evaluation of candidates: accuracy from a supernet or from separate training."""
