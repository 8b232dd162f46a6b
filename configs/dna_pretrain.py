"""Masked LM on DNA or proteins, for two CPU cores; a size of your own for more.

    python -m bert_jax.main --config=configs/dna_pretrain.py --config.data.source=genome.fna.gz
    python -m bert_jax.main --config=configs/dna_pretrain.py:letters --config.data.source=some.faa

The tokenizer follows the colon: `kmer:6` (six bases a token, as Nucleotide Transformer; the
default), `letters:ACGTN` (a base a token), or `letters` (all 26, for proteins). Of letters, spans
are masked; a k-mer is a span by itself. There is no next-sentence loss. docs/biology.md says what
is read, what leaks into held-out text, and how such models compare with Markov chains.
"""

from bert_jax.config import default_config


def get_config(named: str = 'kmer:6'):
    c = default_config()
    c.model.name = 'tiny'
    c.model.max_position_embeddings = 128
    c.model.hidden_dropout = 0.0
    c.model.attention_dropout = 0.0
    c.data.max_seq_length = 128
    c.data.source = 'fasta:*.fa'
    c.data.tokenizer = named
    c.data.held_out = 0.02
    c.data.next_sentence = False
    if named.startswith('letters'):
        c.data.masking = 'spans'
    c.train.steps = 2500
    c.train.batch_size = 32
    c.train.eval_every = 500
    c.train.save_every = 500
    c.train.max_eval_examples = 1024
    c.train.log_every = 100
    c.optimizer.name = 'muon'
    c.optimizer.learning_rate = 3e-3
    c.optimizer.warmup = '10%'
    return c
