"""Runs a grid of settings, each as a run of its own, and picks the best on the dev set."""
