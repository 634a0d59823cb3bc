"""What verbs do, for notebooks and for the command line alike: nothing here prints."""
