"""Reproduces the tables of the BERT paper: `python -m bert_jax.tools.paper TABLE`."""
