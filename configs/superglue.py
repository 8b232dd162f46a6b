"""Fine-tuning on a task of SuperGLUE (Wang et al., 2019).

    python -m bert_jax.main --config=configs/superglue.py:cb
    python -m bert_jax.main --config=configs/superglue.py:cb --config.init_checkpoint=DIR \\
        --config.data.source=superglue

`:boolq :cb :copa :multirc :record :rte :wic :wsc`. The first downloads the paper's BERT-Base,
uncased, and the data from the Hugging Face hub; `superglue` is the folder of the benchmark's files
(`CB/train.jsonl`, ...). `python -m bert_jax.tools.paper superglue --model DIR` runs all over a grid
and seeds. CB, COPA and WSC have 250 to 554 examples, so they are trained for more epochs. MultiRC
and ReCoRD have a sequence for each candidate answer: 27,000, and some 700,000, of long passages.

Their rows have 512 tokens, those of the others 256. A model of fewer positions, as that of
`configs/quickstart.py`, needs shorter ones: `--config.data.max_seq_length=128`.

MultiRC, ReCoRD and WSC are scored on val alone. The test sets of tasks whose texts are columns are
predicted without a config: `python -m bert_jax.predict classify --model RUN --input
BoolQ/test.jsonl --text question --text-pair passage`.
"""

from bert_jax.config import finetuning_config

EPOCHS = {
    'boolq': 3, 'cb': 20, 'copa': 20, 'multirc': 3, 'record': 1, 'rte': 10, 'wic': 5, 'wsc': 20}


def get_config(task: str = 'cb'):
    if task not in EPOCHS:
        raise ValueError(
            f"configs/superglue.py:{task} is unknown: one of {', '.join(EPOCHS)}")
    c = finetuning_config(f'superglue_{task}')
    c.data.source = 'hf:datasets/aps/super_glue'
    c.data.max_seq_length = 512 if task in ('multirc', 'record') else 256
    c.train.batch_size = 16
    c.train.steps = f'{EPOCHS[task]} epochs'
    c.optimizer.learning_rate = 2e-5
    return c
