"""Fine-tuning on a task of SuperGLUE (Wang et al., 2019), with a single sequence or pair each.

    python -m bert_jax.main --config=configs/superglue.py:cb
    python -m bert_jax.main --config=configs/superglue.py:cb --config.init_checkpoint=DIR \\
        --config.data.source=superglue

`:boolq :cb :copa :rte :wic`. The first downloads the paper's BERT-Base, uncased, and the data from
the Hugging Face hub; `superglue` is the folder of the benchmark's files (`CB/train.jsonl`, ...).
`python -m bert_jax.tools.paper superglue --model DIR` runs all five over a grid and seeds. CB and
COPA have 250 and 400 examples, so they are trained for more epochs.
"""

from bert_jax.config import finetuning_config

EPOCHS = {'boolq': 3, 'cb': 20, 'copa': 20, 'rte': 10, 'wic': 5}


def get_config(task: str = 'cb'):
    if task not in EPOCHS:
        raise ValueError(
            f"configs/superglue.py:{task} is unknown: one of {', '.join(EPOCHS)}")
    c = finetuning_config(f'superglue_{task}')
    c.data.source = 'hf:datasets/aps/super_glue'
    c.data.max_seq_length = 256
    c.train.batch_size = 16
    c.train.steps = f'{EPOCHS[task]} epochs'
    c.optimizer.learning_rate = 2e-5
    return c
