"""Export folders: a model's artefacts, the proof of what they compute, and its model card."""
