"""Networks of convolutional blocks: inverted, fused, plain, basic and separable."""
