"""Runs points of a grid or a search, each as a run, and picks the best on the dev set."""
