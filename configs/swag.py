"""SWAG, as in the paper (section 4.4): 3 epochs, 2e-5, batch 16.

    python -m bert_jax.main --config=configs/swag.py
    python -m bert_jax.main --config=configs/swag.py --config.init_checkpoint=DIR \\
        --config.data.source=swag

The first downloads the paper's BERT-Base, uncased, and the data from the Hugging Face hub. `swag`
is the folder of train.csv and val.csv, or one file in SWAG's style (JSON lines, or CODAH's TSV), of
which a fifth is held out.
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('swag')
    c.data.source = 'hf:datasets/allenai/swag'
    c.train.batch_size = 16
    c.optimizer.learning_rate = 2e-5
    return c
