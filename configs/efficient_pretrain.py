"""For half the compute: the paper's model and weights, ingredients of later recipes.

    python -m bert_jax.tools.paper efficient --scale=tiny --data=DATA    # each judged downstream
    python -m bert_jax.main --config=configs/efficient_pretrain.py:all --config.data.vocab_file=...

Every NAME has half the FLOPs of `paper`, which is the recipe of `configs/ablations.py:base`, and
NAME/4 a quarter.
`NAME,tiny` is the same for two CPU cores: `none,tiny` has the model, rows and steps of `base,tiny`
there, which is trained with Muon, but the paper's Adam and dropout, at the rate of such a model.

| NAME | beside `none`, which is the paper's recipe for half as many steps |
|---|---|
| `masking` | 30 % of the tokens are masked (Wettig et al., 2022) |
| `dropout` | none in pre-training (Geiping and Goldstein, 2022); fine-tuning keeps its own |
| `rate` | a triangle: up for half of the steps to a higher rate, then down (the same) |
| `muon` | Muon for the matrices of the layers (Jordan, 2024; Liu et al., 2025), its FLOPs counted |
| `lengths` | the first 30 % of phase 1's FLOPs on rows of half the length |
| `ramp` | the first 30 % of phase 1's FLOPs in batches of a quarter |
| `clipping` | the gradient's norm clipped at 0.5 (Geiping and Goldstein, 2022) |
| `no_nsp` | no next sentence (Liu et al., 2019); it has hurt small models |
| `all` | all of these but `no_nsp` |
| `muon+rate` | these two; so with any |

What packing saves depends on the text: set `packed_rows` of a phase (docs/sources.md). Published
figures are hints for models and budgets of their own; which ingredients hold here, the table has to
show.
"""

from bert_jax.config import default_config

INGREDIENTS = ('masking', 'dropout', 'rate', 'muon', 'lengths', 'ramp', 'clipping')
# FLOPs of a sequence by (length, predictions), in those of the paper's phase 1: model/flops.py.
COSTS = {
    '': {(64, 10): 0.494, (64, 20): 0.521, (128, 20): 1.0, (128, 39): 1.051,
         (512, 80): 4.303, (512, 154): 4.504},
    'tiny': {(16, 3): 0.542, (16, 5): 0.709, (32, 5): 1.0, (32, 10): 1.419, (64, 10): 2.031,
             (64, 20): 2.874, (128, 20): 4.22, (128, 39): 5.844},
}
# FLOPs of Muon at a step, in the same.
MUON_COSTS = {'': 24.6, 'tiny': 14.7}
_SLOTS = {  # of 15 % and of 30 %
    False: {16: 3, 32: 5, 64: 10, 128: 20, 512: 80},
    True: {16: 5, 32: 10, 64: 20, 128: 39, 512: 154}}
_EARLY = 0.3


def get_config(named: str = 'all'):
    name, _, scale = named.partition(',')
    name, _, share = name.partition('/')
    used = INGREDIENTS if name == 'all' else name.split('+')
    known = name in ('paper', 'none') or set(used) <= {*INGREDIENTS, 'no_nsp'}
    if not known or scale not in COSTS or share not in ('', '1', '2', '4', '8'):
        raise ValueError(
            f'configs/efficient_pretrain.py:{named} is unknown: choose paper, none, all, '
            + ', '.join(INGREDIENTS + ('no_nsp',)) + ' or several with + between them, perhaps '
            'with /1, /2, /4 or /8 for a part of the FLOPs, and after a comma perhaps tiny'
        )
    c = default_config()
    if scale == 'tiny':
        c.model.name = 'tiny'
        c.data.held_out = 0.02
        c.train.batch_size = 32
        c.train.max_eval_examples = 1024
        c.optimizer.learning_rate = 3e-3 if 'rate' in used else 2e-3
        c.optimizer.warmup = '10%'
        c.model.initializer_range = 0.05  # as configs/ablations.py has it for this width
        parts = [(4000, 32), (500 * COSTS['tiny'][64, 10], 64), (400 * COSTS['tiny'][128, 20], 128)]
    else:
        c.model.name = 'base'
        c.data.source = 'tfds:wikipedia/20230601.en'
        c.data.held_out = 0.001
        c.data.vocab_size = 30522
        c.train.batch_size = 256
        c.train.max_eval_examples = 10_240
        c.optimizer.learning_rate = 4e-4 if 'rate' in used else 1e-4
        c.optimizer.warmup = '1%'
        parts = [(450_000, 128), (50_000 * COSTS[''][512, 80], 512)]
    whole = int(share or (1 if name == 'paper' else 2))
    parts = [(2 / whole * flops, length) for flops, length in parts]  # FLOPs as in COSTS
    batch = c.train.batch_size
    first, length = parts[0]
    if 'lengths' in used or 'ramp' in used:
        early = length // 2 if 'lengths' in used else length
        parts[:1] = [(_EARLY * first, early), ((1 - _EARLY) * first, length)]
    phases = []
    for i, (flops, length) in enumerate(parts):
        slots = _SLOTS['masking' in used][length]
        small = 4 if 'ramp' in used and i == 0 else 1
        a_step = COSTS[scale][length, slots] / small
        if 'muon' in used:
            a_step += MUON_COSTS[scale] / batch
        phases.append(dict(steps=round(flops / a_step), max_seq_length=length,
                           max_predictions_per_seq=slots, batch_size=batch // small))
        if scale == 'tiny' and length > 32:  # as in configs/ablations.py
            phases[-1] |= dict(learning_rate=c.optimizer.learning_rate / 2, warmup='10%')
    c.phases = tuple(phases)
    c.train.eval_every = c.train.save_every = '10%'
    if 'masking' in used:
        c.data.masked_lm_prob = 0.3
    if 'dropout' in used:
        c.model.hidden_dropout = c.model.attention_dropout = 0.0
    if 'rate' in used:
        c.optimizer.warmup, c.optimizer.decay_from = '50%', 'peak'
    if 'muon' in used:
        c.optimizer.name = 'muon'
    if 'clipping' in used:
        c.optimizer.clip_norm = 0.5
    if 'no_nsp' in used:
        c.data.next_sentence = False
    return c
