"""The weights of a network get ready for the device."""
