"""Training: data, loops, supernets, evaluation of candidates and fine-tuning."""
