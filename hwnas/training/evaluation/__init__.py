"""Evaluation of candidates: trained alone, or as subnets of a supernet."""
