"""Invalid and unusual input for all verbs: exit codes, messages and remaining files."""
