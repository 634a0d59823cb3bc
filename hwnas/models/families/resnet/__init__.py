"""The folder ``resnet``: say here what it is for."""
