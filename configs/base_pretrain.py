"""BERT-Base pre-training as in the paper (Appendix A.2).

    python -m bert_jax.main --config=configs/base_pretrain.py --config.data.vocab_file=vocab.txt

256 sequences a step, 1M steps, Adam 1e-4, 10k steps of warm-up, linear decay; 90 % of the steps at
length 128, then 10 % at 512, in one run. The paper took four days on 16 TPU v2 chips. The run fits
16 chips of any later TPU, with 16 rows each (v5e 4x4): see docs/preflight.md.
"""

from bert_jax.config import default_config


def get_config():
    c = default_config()
    c.model.name = 'base'
    c.data.source = 'wikipedia:en'
    c.data.held_out = 0.001
    c.data.vocab_size = 30522
    c.data.split_long_sentences = False  # as in the original
    c.phases = (
        dict(steps=900_000, max_seq_length=128, max_predictions_per_seq=20),
        dict(steps=100_000, max_seq_length=512, max_predictions_per_seq=80),
    )
    c.train.batch_size = 256
    c.train.eval_every = '1%'
    c.train.save_every = 5000
    c.train.max_eval_examples = 10_240
    c.optimizer.name = 'bert_adamw'
    c.optimizer.learning_rate = 1e-4
    c.optimizer.warmup = '1%'
    return c
