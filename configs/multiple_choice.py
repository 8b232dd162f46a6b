"""Your own multiple-choice questions, with one right choice each.

    python -m bert_jax.main --config=configs/multiple_choice.py --config.init_checkpoint=DIR \\
        --config.data.source=train.csv --config.data.eval_source=dev.csv \\
        --config.data.text=question --config.data.choices=a,b,c,d

CSV, TSV, JSON lines or Parquet; the columns are named by data.text, data.choices and
data.label, which holds the name of the right choice's column or its index from 0. Any number of
choices, the same in every row; in JSON lines data.choices may name a single field with a list of
them. Without an evaluation file a tenth is held out (data.held_out); equal questions stay together.
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('multiple_choice')
    c.data.source = 'train.csv'
    c.train.batch_size = 16
    c.optimizer.learning_rate = 2e-5
    return c
