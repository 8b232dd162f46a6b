"""BoolQ of SuperGLUE: yes/no questions about a passage.

    python -m bert_jax.main --config=configs/boolq.py --config.init_checkpoint=DIR \\
        --config.data.source=BoolQ

`BoolQ` is the folder of train.jsonl, val.jsonl and, where predictions are wanted, test.jsonl.
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('boolq')
    c.data.source = 'BoolQ'
    c.data.max_seq_length = 256
    c.optimizer.learning_rate = 2e-5
    return c
