"""Labelled data: readers of files, units packed into rows, and what turns outputs into files."""
