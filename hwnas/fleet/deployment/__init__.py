"""Files that serve a plan: Triton, Ray Serve, Kubernetes, KServe and alerts."""
