"""The run folder: described, written, restored, compared. No other folder knows its files."""
