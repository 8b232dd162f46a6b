"""Compares runs, on an HTML page or a board: `python -m bert_jax.tools.report RUN ...`."""
