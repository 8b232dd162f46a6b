"""The quickstart: BERT-Tiny on the documentation that comes with every Python.

    python -m bert_jax.main --config=configs/tiny_pretrain.py

Minutes on two CPU cores; needs no download. It trains its own WordPiece vocabulary.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config()
    c.model.name = 'tiny'
    c.model.max_position_embeddings = 128
    c.data.source = 'docs:python'
    c.data.vocab_size = 8000
    c.data.held_out = 0.02
    c.train.steps = 2000
    c.train.batch_size = 64
    c.train.eval_every = 500
    c.train.save_every = 500
    c.train.max_eval_examples = 1024
    c.train.log_every = 50
    c.optimizer.learning_rate = 2e-3
    c.optimizer.warmup = '10%'
    return c
