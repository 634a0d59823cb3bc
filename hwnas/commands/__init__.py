"""One short file a verb: build, call, write."""
