"""Vision transformers with elastic depth, width and heads (AutoFormer)."""
