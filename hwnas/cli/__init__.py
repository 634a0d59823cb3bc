"""The command line: arguments, dispatch, progress bars, tables and help."""
