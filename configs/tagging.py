"""Your own tagged words: named entities or any other tags.

    python -m bert_jax.main --config=configs/tagging.py --config.init_checkpoint=DIR \\
        --config.data.source=train.txt --config.data.eval_source=dev.txt

A file has a word first and its tag last in each line, and an empty line after each sentence; or it
is JSON lines, with a list of words (data.text) and one of tags (data.label). Entities (IOB1, IOB2,
IOBES) are scored by their F1, other tags, such as parts of speech, by the words that are right.
Without an evaluation file a tenth of the sentences is held out (data.held_out).
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('tagging')
    c.data.source = 'train.txt'
    c.data.text, c.data.label = 'tokens', 'tags'
    c.data.held_out = 0.1
    return c
