"""Gates."""
MEANINGS: dict[str, str] = {}
