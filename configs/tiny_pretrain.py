"""BERT-Tiny in one phase, on the documentation that comes with every Python: for trying things out.

    python -m bert_jax.main --config=configs/tiny_pretrain.py

Minutes on two CPU cores; needs no download. It trains its own WordPiece vocabulary.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config()
    c.model.name = 'tiny'
    c.model.max_position_embeddings = 128
    c.data.max_seq_length = 64  # twice the rows a second of 128, and a tiny model learns as much
    c.data.source = 'docs:python'
    c.data.vocab_size = 8000
    c.data.held_out = 0.02
    c.train.steps = 2500
    c.train.batch_size = 32
    c.train.eval_every = 500
    c.train.save_every = 500
    c.train.max_eval_examples = 1024
    c.train.log_every = 100
    c.optimizer.learning_rate = 1e-3
    c.optimizer.warmup = '10%'
    return c
