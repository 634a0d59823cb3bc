"""Training of supernets and of single networks: data, loops, evaluation, fine-tuning."""
