"""A model's weights in memory: their names, checks, settings, and the start from them."""
