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
SETS = {'all': INGREDIENTS, 'five': FIVE}
SHARES = ('', '1', '2', '4', '8')
# `peak_rate` is the learning rate with the ingredient `rate`, `learning_rate` without.
SCALES = {
    '': dict(model='base', num_layers=12, hidden_size=768, batch_size=256, learning_rate=1e-4,
             peak_rate=4e-4),
    'tiny': dict(model='tiny', num_layers=2, hidden_size=128, batch_size=32, learning_rate=2e-3,
                 peak_rate=3e-3),
    'between': dict(model='L-3_H-192_A-3', num_layers=3, hidden_size=192, batch_size=48,
                    learning_rate=7e-4,  # at 1.5e-3, paper's recipe learns nothing
                    peak_rate=2e-3),
    'mini': dict(model='mini', num_layers=4, hidden_size=256, batch_size=64, learning_rate=5e-4,
                 peak_rate=1.5e-3),  # not tuned
}
PREDICTION_SLOTS = {  # by the share that is masked and the row length
    0.05: {16: 1, 32: 2, 64: 4, 128: 7, 512: 26},
    0.15: {16: 3, 32: 5, 64: 10, 128: 20, 512: 80},
    0.3: {16: 5, 32: 10, 64: 20, 128: 39, 512: 154},
}
EARLY_SHARE = 0.3  # of phase 1's FLOPs: `lengths`, `ramp` and `causal` change only these


def get_config(named: str = 'all'):
    recipe = Recipe(named)
    c = default_config()
    c.data.split_long_sentences = False  # as in configs/ablations.py
    c.data.vocab_size = recipe.vocab_size
    c.model.name = recipe.size['model']
    c.train.batch_size = recipe.size['batch_size']
    c.train.eval_every = c.train.save_every = '10%'
    c.optimizer.learning_rate = recipe.learning_rate
    if recipe.scale:
        c.data.held_out = 0.02
        c.train.max_eval_examples = 1024
        c.optimizer.warmup = '10%'
        width = recipe.size['hidden_size']
        c.model.initializer_range = round(0.05 * (128 / width) ** 0.5, 3)  # as in ablations.py
    else:
        c.data.source = 'wikipedia:en'
        c.data.held_out = 0.001
        c.train.max_eval_examples = 10_240
        c.optimizer.warmup = '1%'
    c.phases = phases(recipe)
    add_ingredients(c, recipe.ingredients)
    return c


class Recipe:
    """What NAME/SHARE@RATE,SCALE says.

    Attributes:
      ingredients: what is added to the paper's recipe.
      scale: a key of SCALES.
      size: its value.
      vocab_size: number of pieces.
      share: 1 for the paper's FLOPs, 2 for half of them, and so on.
      learning_rate: the highest of the run.
    """

    def __init__(self, named: str):
        name, _, self.scale = named.partition(',')
        name, _, rate = name.partition('@')
        name, _, share = name.partition('/')
        self.ingredients = ingredients_of(name)
        if self.ingredients is None or self.scale not in SCALES or share not in SHARES:
            raise ValueError(
                f'configs/efficient_pretrain.py:{named} is unknown: choose paper, none, all, five, '
                + ', '.join(INGREDIENTS + OTHERS) + ' or several with + between them, or '
                'five-muon without one, perhaps with /1, /2, /4 or /8 for a part of the FLOPs and '
                '@1e-3 for a learning rate, and after a comma perhaps tiny, between or mini'
            )
        self.size = SCALES[self.scale]
        self.vocab_size = 8000 if self.scale else 30522
        self.share = int(share or (1 if name == 'paper' else 2))
        default_rate = 'peak_rate' if 'rate' in self.ingredients else 'learning_rate'
        self.learning_rate = float(rate or self.size[default_rate])


def ingredients_of(name: str) -> set[str] | None:
    """The ingredients of 'five+stable-muon'; None if there is no such recipe."""
    if name in ('paper', 'none'):
        return set()
    added, *removed = name.split('-')
    found = set()
    for part in added.split('+'):
        found.update(SETS.get(part, (part,)))
    if not found <= {*INGREDIENTS, *OTHERS} or not found.issuperset(removed):
        return None
    return found.difference(removed)


def phases(recipe: Recipe) -> tuple[dict, ...]:
    """The phases, each with as many steps as its budget pays for."""
    costs = Costs(recipe)
    result = []
    parts = parts_of(recipe, costs)
    for number, (budget, length) in enumerate(parts):
        is_first = number == 0
        masked = masked_share(recipe, is_first=is_first, is_last=number == len(parts) - 1)
        slots = PREDICTION_SLOTS[masked][length]
        batch_size = recipe.size['batch_size']
        is_causal = is_first and 'causal' in recipe.ingredients
        step_cost = costs.row(length, length if is_causal else slots)
        if is_first and 'ramp' in recipe.ingredients:
            batch_size //= 4
            step_cost /= 4
        if 'muon' in recipe.ingredients:
            step_cost += costs.muon / recipe.size['batch_size']
        phase = dict(
            steps=round(budget / step_cost), max_seq_length=length, max_predictions_per_seq=slots,
            batch_size=batch_size)
        if 'falling' in recipe.ingredients:
            phase['masked_lm_prob'] = masked
        if is_causal:
            phase['causal'] = True
        if recipe.scale and length > 32:  # as in configs/ablations.py
            phase['learning_rate'] = recipe.learning_rate / 2
            phase['warmup'] = '10%'
        result.append(phase)
    return tuple(result)


class Costs:
    """FLOPs, in the unit of a row of phase 1 as the paper trains it.

    Attributes:
      muon: of Muon's part of a step.
    """

    def __init__(self, recipe: Recipe):
        self.num_layers = recipe.size['num_layers']
        self.hidden_size = recipe.size['hidden_size']
        self.vocab_size = recipe.vocab_size
        self.unit = self._flops(32, 5) if recipe.scale else self._flops(128, 20)
        self.muon = round(300 * self.num_layers * self.hidden_size**3 / self.unit, 1)

    def row(self, length: int, slots: int) -> float:
        """Of training on a row with so many prediction slots."""
        return round(self._flops(length, slots) / self.unit, 3)

    def _flops(self, length: int, slots: int) -> float:
        """FLOPs of training on a sequence, with the last layer's queries at all positions.

        bert_jax/model/flops.py counts up to 2 % less since it computes fewer of them; by its count
        the recipes would have other steps than in the runs that exist.
        """
        h = self.hidden_size
        attention = 4 * length * h
        before = (self.num_layers - 1) * length * (24 * h**2 + attention)
        last = 6 * length * h**2 + (slots + 1) * (18 * h**2 + attention)
        words = slots * (2 * h**2 + 2 * h * self.vocab_size)
        return 3 * (before + last + words + 2 * h**2 + 4 * h)


def parts_of(recipe: Recipe, costs: Costs) -> list[tuple[float, int]]:
    """(Budget, row length) of each phase.

    A budget is what all steps of the phase cost for one row of the batch, in the unit of `costs`.
    """
    if recipe.scale:  # as many steps as configs/ablations.py
        parts = [(4000, 32), (500 * costs.row(64, 10), 64), (400 * costs.row(128, 20), 128)]
    else:
        parts = [(450_000, 128), (50_000 * costs.row(512, 80), 512)]
    parts = [(2 / recipe.share * budget, length) for budget, length in parts]
    if recipe.ingredients & {'lengths', 'ramp', 'causal'}:
        budget, length = parts[0]
        early_length = length // 2 if 'lengths' in recipe.ingredients else length
        early = (EARLY_SHARE * budget, early_length)
        late = ((1 - EARLY_SHARE) * budget, length)
        parts[:1] = [early, late]
    return parts


def masked_share(recipe: Recipe, is_first: bool, is_last: bool) -> float:
    """The share of the tokens that a phase masks."""
    if 'falling' in recipe.ingredients:
        if is_first:
            return 0.3
        return 0.05 if is_last else 0.15
    return 0.3 if 'masking' in recipe.ingredients else 0.15


def add_ingredients(c, ingredients: set[str]) -> None:
    """Sets the fields of those ingredients that are the same in all phases."""
    if 'masking' in ingredients:
        c.data.masked_lm_prob = 0.3
    if 'dropout' in ingredients:
        c.model.hidden_dropout = c.model.attention_dropout = 0.0
    if 'rate' in ingredients:
        c.optimizer.warmup = '50%'
        c.optimizer.decay_from = 'peak'
    if 'stable' in ingredients:
        c.optimizer.decay_from = '80%'
    if 'cosine' in ingredients:
        c.optimizer.decay = 'cosine'
    if 'average' in ingredients:
        c.optimizer.average = '10%'
    if 'muon' in ingredients:
        c.optimizer.name = 'muon'
    if 'clipping' in ingredients:
        c.optimizer.clip_norm = 0.5
    if 'no_nsp' in ingredients:
        c.data.next_sentence = False
