"""SQuAD 1.1 (paper section 4.2: 3 epochs, 5e-5, batch 32) or 2.0 (4.3: 2 epochs, 5e-5, batch 48).

    python -m bert_jax.main --config=configs/squad.py:v1
    python -m bert_jax.main --config=configs/squad.py:v1 --config.init_checkpoint=DIR \\
        --config.data.source=squad

The first downloads the paper's BERT-Base, uncased, and the data from the Hugging Face hub
(`hf:datasets/rajpurkar/squad`, or `squad_v2`). `squad` is a folder with train-v1.1.json and
dev-v1.1.json (v2.0 for `:v2`), plain or .gz, or `tfds:squad`. Or `data.source` is a training file
in this layout, or with a question a row (`question`, `context`, `answers`), and `data.eval_source`
the file to score; without it, paragraphs are held out. (In files that are not called as SQuAD's
own, answers are the pieces at their characters; in those, as `run_squad.py` finds them.) To train
on TriviaQA first, convert it to SQuAD's layout, train on it, and start from that run. The run
directory receives predictions.json, nbest_predictions.json and, for `:v2`, null_odds.json.
"""

from bert_jax.config import finetuning_config


def get_config(version: str = 'v1'):
    if version not in ('v1', 'v2'):
        raise ValueError(f'configs/squad.py:{version} is unknown: choose v1 or v2')
    c = finetuning_config(f'squad_{version}')
    c.data.max_seq_length = 384
    if version == 'v1':
        c.data.source = 'hf:datasets/rajpurkar/squad'
        c.train.steps = '3 epochs'
        c.train.batch_size = 32
    else:
        c.data.source = 'hf:datasets/rajpurkar/squad_v2'
        c.train.steps = '2 epochs'
        c.train.batch_size = 48
    return c
