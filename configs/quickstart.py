"""The quickstart: a tiny BERT that fills gaps, from the documentation that comes with every Python.

    python -m bert_jax.main --config=configs/quickstart.py
    python -m bert_jax.predict fill-mask --model=runs/quickstart 'Open the [MASK] and read it.'

Minutes on two CPU cores, no download. Most steps are on short rows, where a step is cheap. Muon and
no dropout, as in configs/ablations.py:base,tiny, which says what they gain.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config()
    c.model.name = 'tiny'
    c.model.max_position_embeddings = 128
    c.model.initializer_range = 0.05  # 0.02 * sqrt(768 / 128)
    c.model.hidden_dropout = c.model.attention_dropout = 0.0
    c.data.source = 'docs:python'
    c.data.vocab_size = 8000
    c.data.held_out = 0.02
    again = dict(learning_rate=1e-3, warmup='10%')
    c.phases = (
        dict(steps=4000, max_seq_length=32),
        dict(steps=500, max_seq_length=64, **again),
        dict(steps=400, max_seq_length=128, **again),
    )
    c.train.batch_size = 32
    c.train.eval_every = 1000
    c.train.save_every = 1000
    c.train.max_eval_examples = 1024
    c.train.log_every = 100
    c.optimizer.name = 'muon'
    c.optimizer.learning_rate = 2e-3
    c.optimizer.warmup = '10%'
    return c
