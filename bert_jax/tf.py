"""TensorFlow without Keras, which takes a third of its import and is not used here."""

from bert_jax.without import without

with without('keras'):
    import tensorflow as tf

__all__ = ['tf']
