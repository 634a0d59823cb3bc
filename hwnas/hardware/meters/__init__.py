"""Energy meters: RAPL, NVML and hwmon."""
