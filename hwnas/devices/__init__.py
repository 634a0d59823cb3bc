"""The model of a device that is out of reach: latencies of all networks from few measured ones."""
