"""The folder ``onnx``: say here what it is for."""
