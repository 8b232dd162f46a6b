"""Your own texts with a number each: a grade, a similarity of two texts.

    python -m bert_jax.main --config=configs/regression.py --config.init_checkpoint=DIR \\
        --config.data.source=train.csv --config.data.eval_source=dev.csv

Files and columns are as for configs/classification.py. `--config.regression.metrics=pearson`: of
spearman and pearson; the first picks the best evaluation.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config('regression')
    c.model.name = ''
    c.data.source = 'train.csv'
    c.data.held_out = 0.1
    c.data.max_seq_length = 128
    c.train.steps = '3 epochs'
    c.train.batch_size = 32
    c.train.eval_every = '1 epoch'
    c.train.save_every = '1 epoch'
    c.train.log_every = 50
    c.optimizer.learning_rate = 5e-5
    c.optimizer.warmup = '10%'
    return c
