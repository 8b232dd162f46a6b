"""BoolQ of SuperGLUE: yes/no questions about a passage.

    python -m bert_jax.main --config=configs/boolq.py --config.init_checkpoint=DIR \\
        --config.data.source=BoolQ

`BoolQ` is the folder of train.jsonl, val.jsonl and, where predictions are wanted, test.jsonl.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config('boolq')
    c.model.name = ''
    c.data.source = 'BoolQ'
    c.data.max_seq_length = 256
    c.train.steps = '3 epochs'
    c.train.batch_size = 32
    c.train.eval_every = '1 epoch'
    c.train.save_every = '1 epoch'
    c.train.log_every = 50
    c.optimizer.learning_rate = 2e-5
    c.optimizer.warmup = '10%'
    return c
