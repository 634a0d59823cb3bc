"""The metrics that come with hwnas: every module here has one, as ``METRIC``."""
