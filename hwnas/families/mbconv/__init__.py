"""The family of convolutional networks of blocks of several kinds."""
