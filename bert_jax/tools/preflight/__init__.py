"""Compiles a run's steps for a TPU slice without the slice, and reads what they will take."""
