"""Your own texts with a tag for each word: named entities or any other tags.

    python -m bert_jax.main --config=configs/tagging.py --config.init_checkpoint=DIR \\
        --config.data.source=train.txt --config.data.eval_source=dev.txt

Each line of a file begins with a word and ends with its tag, and an empty line follows each
sentence; or the file is JSON lines, with a list of words (data.text) and one of tags (data.label),
or a treebank of Universal Dependencies (.conllu), whose parts of speech are the tags.
Entities (IOB1, IOB2, IOBES) are scored by F1, other tags, such as parts of speech, by accuracy.
Without an evaluation file a tenth of the sentences is held out (data.held_out). Without DIR,
training starts from the published BERT-Base, cased.
"""

from bert_jax.config import CASED, finetuning_config


def get_config():
    c = finetuning_config('tagging', CASED)
    c.data.source = 'train.txt'
    return c
