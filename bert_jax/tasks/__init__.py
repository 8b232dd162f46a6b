"""Pre-training and the downstream tasks: their data, heads, metrics and results."""
