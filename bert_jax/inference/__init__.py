"""The engine: packed rows through a model, outputs back in the order of the callers."""
