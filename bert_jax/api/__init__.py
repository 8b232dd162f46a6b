"""BERT in one's own program: what `import bert_jax` gives."""
