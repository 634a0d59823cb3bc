"""Int8 networks: quantisation, its simulation in training, and the TFLite format."""
