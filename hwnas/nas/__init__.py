"""The search itself: the study, samplers, candidates, verification, the front and cascades."""
