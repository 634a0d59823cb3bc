"""Fine-tuning, pruning, weight compression and int8 training of single networks."""
