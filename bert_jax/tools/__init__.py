"""Commands for measuring and planning; nothing here is needed to train."""
