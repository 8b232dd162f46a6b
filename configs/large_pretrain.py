"""BERT-Large pre-training: the paper's recipe, or LAMB's for pods.

    python -m bert_jax.main --config=configs/large_pretrain.py --config.data.vocab_file=vocab.txt
    python -m bert_jax.main --config=configs/large_pretrain.py:lamb

Paper (Appendix A.2): 256 sequences a step, 1M steps, Adam 1e-4, warm-up 10k, linear decay, weight
decay 0.01; 90 % of the steps at length 128, then 10 % at 512. Four days on 64 TPU v2 chips. The
config is for 16 chips of 16 GB or more (v5e 4x4: 16 rows each, 2.8 and then 5.8 GB); 64 (v4 or v5p
4x4x4: four rows each) finish sooner but take more chip-hours, and larger slices mostly wait for
memory.

`:lamb` (You et al., 2019, with NVIDIA's published figures): 7,038 steps of 65,536 sequences of 128
at 6e-3, then 1,563 of 32,768 of 512 at 4e-3, each with its own warm-up (28.43 % and 12.8 %) and
square-root decay. 76 minutes on 1,024 TPU v3 chips in the LAMB paper. The config is for 256 chips
of 16 GB or more (v5e or v6e 16x16), each batch in 16 parts: 16 rows a chip at once at 128, then 8
at 512 (4.8 and 6.0 GB on v5e); or for 64 of 32 GB (v4 4x4x4: 8.2 and 12.6 GB). 16 v5e chips need 64
parts. docs/preflight.md has the predicted times and costs.
"""

from bert_jax.config import default_config


def get_config(recipe: str = 'paper'):
    if recipe not in ('paper', 'lamb'):
        raise ValueError(f'configs/large_pretrain.py:{recipe} is unknown: choose paper or lamb')
    c = default_config()
    c.model.name = 'large'
    c.data.source = 'wikipedia:en'
    c.data.held_out = 0.001
    c.data.vocab_size = 30522
    c.data.split_long_sentences = False  # as in the original
    c.train.max_eval_examples = 10_240
    if recipe == 'paper':
        c.phases = (
            dict(steps=900_000, max_seq_length=128, max_predictions_per_seq=20),
            dict(steps=100_000, max_seq_length=512, max_predictions_per_seq=80),
        )
        c.train.batch_size = 256
        c.train.eval_every = '1%'
        c.train.save_every = 5000
        c.optimizer.name = 'bert_adamw'
        c.optimizer.learning_rate = 1e-4
        c.optimizer.warmup = '1%'
    else:
        c.phases = (
            dict(steps=7_038, max_seq_length=128, max_predictions_per_seq=20, batch_size=65_536,
                 learning_rate=6e-3, warmup='28.43%'),
            dict(steps=1_563, max_seq_length=512, max_predictions_per_seq=80, batch_size=32_768,
                 learning_rate=4e-3, warmup='12.8%'),
        )
        c.train.eval_every = 500
        c.train.save_every = 200
        c.train.log_every = 10
        c.train.accumulation_steps = 16  # 16 rows at once a chip of 256, then 8
        c.train.eval_batch_size = 2048
        c.optimizer.name = 'lamb'
        c.optimizer.decay_power = 0.5
    return c
