"""Your own texts with a number each: a grade, a similarity of two texts.

    python -m bert_jax.main --config=configs/regression.py --config.init_checkpoint=DIR \\
        --config.data.source=train.csv --config.data.eval_source=dev.csv

Files and columns are as for configs/classification.py. `--config.regression.metrics=pearson`:
spearman, pearson or both; the first picks the best evaluation.
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('regression')
    c.data.source = 'train.csv'
    return c
