"""BERT in JAX and Flax: pre-training, fine-tuning, conversion and prediction."""
