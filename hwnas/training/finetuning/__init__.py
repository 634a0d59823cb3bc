"""Fine-tuning of the candidates that may be on the front: distillation, int8, compression."""
