"""The default sampler: an Optuna sampler for accuracy and costs, with Gaussian processes."""
