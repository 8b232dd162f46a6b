"""Continues pre-training of published weights on your own text, and with your own words.

    python -m bert_jax.main --config=configs/continue_pretrain.py --config.init_checkpoint=DIR \\
        --config.data.source='text/*.txt'
    ... --config.data.add_tokens=words.txt

DIR is a Hugging Face folder, a TF1 checkpoint or a run of this project. Model and vocabulary come
from it, including all rows of its position table, whatever max_seq_length is here. The text is
plain, with an empty line between documents. `words.txt` has one word per line; each becomes one
piece, whose embedding starts at the mean of its old pieces' embeddings. (A longer word that begins
with an added one is then split after it.)

The rate is 3e-5: pre-training's 1e-4 at 256 sequences, scaled by the square root of the batch size
to 32 sequences, gives 3.5e-5, and google-research/bert advises 2e-5 for continued training; at much
higher rates the weights lose what they have learnt. There is a short warm-up because Adam starts
with zero moments and no bias correction.

If the weights lack the pre-training heads (a sentence encoder, `BertModel`), these start fresh,
which the run reports; they need more steps than the rest. If the weights never saw sentence pairs
(those of RoBERTa, XLM-R, DistilBERT, ELECTRA and ModernBERT did not), or the text has no sentences
to pair, turn pairs off: --config.data.next_sentence=False.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config()
    c.model.name = ''
    c.data.source = ''
    c.data.max_seq_length = 128
    c.train.steps = '3 epochs'
    c.train.batch_size = 32
    c.train.eval_every = '10%'
    c.train.save_every = '10%'
    c.train.eval_batch_size = 32
    c.train.max_eval_examples = 10_240
    c.optimizer.learning_rate = 3e-5
    c.optimizer.warmup = '2%'
    return c
