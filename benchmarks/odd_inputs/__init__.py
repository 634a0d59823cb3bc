"""Odd input over all verbs: what is refused, in which words, and what it leaves behind."""
