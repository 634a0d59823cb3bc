"""What a candidate costs on a target."""
