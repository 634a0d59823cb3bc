"""From fronts to a fleet: which model runs where, at which batch size, in how many replicas."""
