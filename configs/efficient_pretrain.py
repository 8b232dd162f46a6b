"""Half the compute: the paper's model and parameters, with ingredients of later recipes.

    python -m bert_jax.tools.paper efficient --scale=tiny --data=DATA    # each judged downstream
    python -m bert_jax.main --config=configs/efficient_pretrain.py:all --config.data.vocab_file=...

Every NAME has half the FLOPs of `paper`, which is the recipe of `configs/ablations.py:base`, and
NAME/4 a quarter.
`NAME,tiny`, `NAME,between` and `NAME,mini` are the same for two CPU cores, with 2 layers of 128, 3
of 192 and 4 of 256 (google's BERT-Mini). `none,tiny` has the model, rows and steps of
`configs/ablations.py:base,tiny`, but trains with the paper's Adam and dropout instead of Muon and
no dropout, at a learning rate for a model of this size. `between` and `mini` have as many steps,
with batches that grow with the width, so that Muon's share of a step's FLOPs stays the same; and
the same vocabulary of 8,000 pieces, so that losses can be compared.

| NAME | added to `none`, which is the paper's recipe for half as many steps |
|---|---|
| `masking` | 30 % of the tokens are masked (Wettig et al., 2022) |
| `dropout` | none in pre-training (Geiping and Goldstein, 2022); fine-tuning keeps its own |
| `rate` | a triangle: up for half of the steps to a higher rate, then down (the same paper) |
| `muon` | Muon for the matrices of the layers (Jordan, 2024; Liu et al., 2025), its FLOPs counted |
| `lengths` | the first 30 % of phase 1's FLOPs on rows of half the length |
| `ramp` | the first 30 % of phase 1's FLOPs in batches of a quarter of the size |
| `clipping` | the gradient's norm clipped at 0.5 (Geiping and Goldstein, 2022) |
| `causal` | the first 30 % of phase 1's FLOPs left to right (Gisserot-Boukhlef et al., 2025) |
| `falling` | 30 % masked in the first phase, 5 in the last, 15 between (mmBERT, 2025) |
| `stable` | the learning rate is constant until it falls in the last fifth of the steps |
| `cosine` | the learning rate falls as half a cosine |
| `average` | the run ends with the mean of the weights over its last tenth |
| `no_nsp` | no next-sentence loss (Liu et al., 2019); leaving it out has hurt small models |
| `all` | all of the first seven |
| `five` | `masking+dropout+rate+muon+clipping` |
| `muon+rate`, `five+stable`, `five-muon` | any names can be added with + or left out with - |

`NAME@RATE` sets another learning rate, to tune all recipes alike: `paper@1e-3,mini`,
`five/4@4e-3,mini`.

What packing saves depends on the text: set `packed_rows` of a phase (docs/sources.md). Published
figures are for other models and budgets; the table of the first command shows which ingredients
help here.
"""

from bert_jax.config import default_config

INGREDIENTS = ('masking', 'dropout', 'rate', 'muon', 'lengths', 'ramp', 'clipping')
OTHERS = ('causal', 'falling', 'stable', 'cosine', 'average', 'no_nsp')
FIVE = ('masking', 'dropout', 'rate', 'muon', 'clipping')
# Model, layers, hidden size, sequences a step, learning rate, and the higher one of `rate`.
SCALES = {
    '': ('base', 12, 768, 256, 1e-4, 4e-4), 'tiny': ('tiny', 2, 128, 32, 2e-3, 3e-3),
    'between': ('L-3_H-192_A-3', 3, 192, 48, 7e-4, 2e-3),  # 1.5e-3: paper's recipe learns nothing
    'mini': ('mini', 4, 256, 64, 5e-4, 1.5e-3),  # not tuned
}
_SLOTS = {  # prediction slots, by the share that is masked and the row length
    0.05: {16: 1, 32: 2, 64: 4, 128: 7, 512: 26},
    0.15: {16: 3, 32: 5, 64: 10, 128: 20, 512: 80},
    0.3: {16: 5, 32: 10, 64: 20, 128: 39, 512: 154}}
_EARLY = 0.3


def _flops(layers: int, hidden: int, vocab_size: int, length: int, slots: int) -> float:
    """FLOPs of training on a sequence, by the formula of bert_jax/model/flops.py."""
    h, attention = hidden, 4 * length * hidden
    before = (layers - 1) * length * (24 * h**2 + attention)
    last = 6 * length * h**2 + (slots + 1) * (18 * h**2 + attention)
    return 3 * (before + last + slots * (2 * h**2 + 2 * h * vocab_size) + 2 * h**2 + 4 * h)


def get_config(named: str = 'all'):
    name, _, scale = named.partition(',')
    name, _, rate = name.partition('@')
    name, _, share = name.partition('/')
    plus, *minus = name.split('-')
    sets = {'all': INGREDIENTS, 'five': FIVE}
    used = [one for part in plus.split('+') for one in sets.get(part, (part,))]
    known = name in ('paper', 'none') or (
        {*used} <= {*INGREDIENTS, *OTHERS} and {*minus} <= {*used})
    if not known or scale not in SCALES or share not in ('', '1', '2', '4', '8'):
        raise ValueError(
            f'configs/efficient_pretrain.py:{named} is unknown: choose paper, none, all, five, '
            + ', '.join(INGREDIENTS + OTHERS) + ' or several with + between them, or '
            'five-muon without one, perhaps with /1, /2, /4 or /8 for a part of the FLOPs and '
            '@1e-3 for a learning rate, and after a comma perhaps tiny, between or mini'
        )
    used = {*used} - {*minus}
    c = default_config()
    c.data.split_long_sentences = False  # as in configs/ablations.py
    c.model.name, layers, hidden, batch, *rates = SCALES[scale]
    c.train.batch_size = batch
    c.optimizer.learning_rate = float(rate or rates['rate' in used])
    c.data.vocab_size = 8000 if scale else 30522
    model = (layers, hidden, c.data.vocab_size)
    unit = _flops(*model, 32, 5) if scale else _flops(*model, 128, 20)  # a row of phase 1
    muon_cost = round(300 * layers * hidden**3 / unit, 1)  # of a step, in rows of phase 1

    def cost(length: int, slots: int) -> float:
        return round(_flops(*model, length, slots) / unit, 3)

    if scale:
        c.data.held_out = 0.02
        c.train.max_eval_examples = 1024
        c.optimizer.warmup = '10%'
        c.model.initializer_range = round(0.05 * (128 / hidden) ** 0.5, 3)  # as in ablations.py
        parts = [(4000, 32), (500 * cost(64, 10), 64), (400 * cost(128, 20), 128)]
    else:
        c.data.source = 'wikipedia:en'
        c.data.held_out = 0.001
        c.train.max_eval_examples = 10_240
        c.optimizer.warmup = '1%'
        parts = [(450_000, 128), (50_000 * cost(512, 80), 512)]
    whole = int(share or (1 if name == 'paper' else 2))
    parts = [(2 / whole * flops, length) for flops, length in parts]  # FLOPs as in `cost`
    first, length = parts[0]
    if used & {'lengths', 'ramp', 'causal'}:
        early = length // 2 if 'lengths' in used else length
        parts[:1] = [(_EARLY * first, early), ((1 - _EARLY) * first, length)]
    phases = []
    for i, (flops, length) in enumerate(parts):
        masked = 0.3 if 'masking' in used else 0.15
        if 'falling' in used:
            masked = {0: 0.3, len(parts) - 1: 0.05}.get(i, 0.15)
        slots = _SLOTS[masked][length]
        small = 4 if 'ramp' in used and i == 0 else 1
        from_left = 'causal' in used and i == 0
        a_step = cost(length, length if from_left else slots) / small
        if 'muon' in used:
            a_step += muon_cost / batch
        phases.append(dict(steps=round(flops / a_step), max_seq_length=length,
                           max_predictions_per_seq=slots, batch_size=batch // small))
        if 'falling' in used:
            phases[-1]['masked_lm_prob'] = masked
        if from_left:
            phases[-1]['causal'] = True
        if scale and length > 32:  # as in configs/ablations.py
            phases[-1] |= dict(learning_rate=c.optimizer.learning_rate / 2, warmup='10%')
    c.phases = tuple(phases)
    c.train.eval_every = c.train.save_every = '10%'
    if 'masking' in used:
        c.data.masked_lm_prob = 0.3
    if 'dropout' in used:
        c.model.hidden_dropout = c.model.attention_dropout = 0.0
    if 'rate' in used:
        c.optimizer.warmup, c.optimizer.decay_from = '50%', 'peak'
    if 'stable' in used:
        c.optimizer.decay_from = '80%'
    if 'cosine' in used:
        c.optimizer.decay = 'cosine'
    if 'average' in used:
        c.optimizer.average = '10%'
    if 'muon' in used:
        c.optimizer.name = 'muon'
    if 'clipping' in used:
        c.optimizer.clip_norm = 0.5
    if 'no_nsp' in used:
        c.data.next_sentence = False
    return c
