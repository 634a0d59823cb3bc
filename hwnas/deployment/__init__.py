"""What a plan is launched by: files of servers, of Kubernetes, of Ray and of Prometheus."""
