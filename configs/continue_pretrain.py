"""Goes on pre-training from published weights on your own text, and with your own words.

    python -m bert_jax.main --config=configs/continue_pretrain.py --config.init_checkpoint=DIR \\
        --config.data.source='text/*.txt'
    ... --config.data.add_tokens=words.txt

DIR is a Hugging Face folder, a TF1 checkpoint or a run of this project: model and vocabulary are
its own, all rows of its position table included, whatever the length here. The text is plain,
documents apart by empty lines. `words.txt` has one word a line; each becomes one piece, whose row
starts at the mean of its old pieces. (A longer word that begins with an added one is then cut
behind it.)

A rate of 3e-5: pre-training's 1e-4 at 256 sequences, scaled by the root of the batch to 32, gives
3.5e-5, and google-research/bert advises 2e-5 where training goes on; much more, and what the
weights know is lost. The warm-up is short but there, because Adam starts without its moments and
without bias correction.

Weights without the heads of pre-training (a sentence encoder, `BertModel`) start them fresh, which
the run says; they want more steps than the rest. Where the weights never saw sentence pairs, or the
text has no sentences to pair, leave the pairs out: --config.data.next_sentence=False.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config()
    c.model.name = ''
    c.data.source = ''
    c.data.max_seq_length = 128
    c.data.max_predictions_per_seq = 20
    c.train.steps = '3 epochs'
    c.train.batch_size = 32
    c.train.eval_every = '10%'
    c.train.save_every = '10%'
    c.train.eval_batch_size = 32
    c.train.max_eval_examples = 10_240
    c.optimizer.learning_rate = 3e-5
    c.optimizer.warmup = '2%'
    return c
