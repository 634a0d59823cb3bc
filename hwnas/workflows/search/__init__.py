"""The verb ``search``: from options to a verified front with its report."""
