"""The folder ``finetuning``: say here what it is for."""
