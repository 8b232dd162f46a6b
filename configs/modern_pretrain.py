"""ModernBERT and EuroBERT, pre-trained: masked words alone, first in short rows, then of 8,192.

    python -m bert_jax.main --config=configs/modern_pretrain.py --config.data.source='text/*.txt.gz'
    python -m bert_jax.main --config=configs/modern_pretrain.py:large
    python -m bert_jax.main --config=configs/modern_pretrain.py:tiny
    python -m bert_jax.main --config=configs/modern_pretrain.py:eurobert
    python -m bert_jax.main --config=configs/modern_pretrain.py:eurobert-tiny

`base` (22 layers of 768) and `large` (28 of 1,024) follow Warner et al. (2024, Tables 3 and 4) and
the yamls in AnswerDotAI/ModernBERT; `tiny` and `mini` have the same phases for two CPU cores.

| phase | tokens | base | large |
|---|---|---|---|
| rows of 1,024, rotary base 10,000 | 1,719 B; large 900 B + 800 B | rate 8e-4 | 5e-4, then 5e-5 |
| rows of 8,192, rotary base of global layers 160,000 | 250 B | 3e-4 | 5e-5 |
| the same, the rate falling as 1 - sqrt to 0 | 50 B | from 3e-4 | from 5e-5 |

The rate is constant between its warm-up (3 B tokens; large 2 B) and the last phase. Batches grow
from 768 rows to 4,608 in the first 50 B tokens (large: in 10 B), here in five steps, each for the
same number of steps. Large has 448 to 4,928 rows there and 616 or 624 long ones, here 640 to 5,120
and 640, which more chips can share.

- StableAdamW (betas 0.9 and 0.98, eps 1e-6) clips its own updates, so the gradient's norm is not
  clipped. Weight decay is 1e-5 a step there; here it is multiplied by the rate, so it is 1e-5 at
  the highest rate, and less later.
- 30 % of the tokens are masked in the first phase. ModernBERT keeps that; here it is 15 and then
  5 % in the others, as of mmBERT (Marone et al., 2025), the same model with the same phases.
- ModernBERT drops 0.1 of each attention block's output and nothing else; here nothing is dropped.
- ModernBERT-Large starts from Base's weights, repeated; here it is drawn at random.
- The vocabulary is a byte-level BPE of your text, of as many pieces as the published one, which was
  made of another text (OLMo's).
- The published text is not public. Wikipedia has a few billion tokens, for hundreds of epochs: give
  your own. `--config.train.steps=N` shortens all phases alike.

`eurobert` is EuroBERT-210M's recipe, as Boizard et al. (2025) describe it: Llama's layers (RMSNorm,
SwiGLU, rotary positions, no biases) that see both sides, an output layer of its own, half of the
tokens masked over 4.8 T tokens, then a tenth over 200 B in rows of 8,192 while the rate falls to 0.
The optimizer's settings, the batches and the short rows of 2,048 are chosen here, and the
vocabulary is of your text, of as many pieces as theirs. `eurobert-tiny` runs in a minute on two
cores; its two heads of queries share one of keys and values, as three do in the larger EuroBERTs.

A row holds several documents, each attending to itself. How many fill it depends on the text: the
run says how full its rows are, and which `batch_size` (sequences a step) fills them.
"""

from bert_jax.config import default_config

# rows: of a step at the short length; growing: of the steps before those; long_rows: at the long
#   length.
# rates: (tokens, rate) of the short length.
# sequences: about as many as fill a row of each length.
# parts: that a step is computed in; they divide the rows of every batch on 16 chips. Without remat,
#   rows of 8,192 need chips with more than 16 GB (docs/preflight.md).
SCALES = {
    'base': dict(
        model=dict(name='base', num_layers=22, intermediate_size=1152),
        lengths=(1024, 8192), rows=4608, growing=(768, 1536, 2304, 3072, 3840), long_rows=576,
        growing_tokens=50e9, warmup_tokens=3e9, rates=[(1719e9, 8e-4)], long_rate=3e-4,
        long_tokens=(250e9, 50e9), sequences=(2, 10), parts=12),
    'large': dict(
        model=dict(name='large', num_layers=28, intermediate_size=2624),
        lengths=(1024, 8192), rows=5120, growing=(640, 1600, 2560, 3520, 4480), long_rows=640,
        growing_tokens=10e9, warmup_tokens=2e9, rates=[(900e9, 5e-4), (800e9, 5e-5)],
        long_rate=5e-5, long_tokens=(250e9, 50e9), sequences=(2, 10), parts=20),
    # As many tokens a step as configs/efficient_pretrain.py has at most, on text that comes with
    # Python; the window and the lengths are smaller by the same factor.
    'tiny': dict(
        model=dict(name='tiny', num_layers=4, intermediate_size=192, local_attention=16,
                   initializer_range=0.05),  # 0.02 * sqrt(768 / 128)
        lengths=(64, 256), rows=32, growing=(16,), long_rows=8,
        growing_tokens=4e5, warmup_tokens=2e5, rates=[(6e6, 3e-3)], long_rate=1e-3,
        long_tokens=(12e5, 4e5), sequences=(1, 1)),
    'mini': dict(
        model=dict(name='mini', num_layers=7, intermediate_size=384, local_attention=16,
                   initializer_range=0.035),  # 0.02 * sqrt(768 / 256)
        lengths=(128, 1024), rows=32, growing=(16,), long_rows=8,
        growing_tokens=8e5, warmup_tokens=4e5, rates=[(16e6, 1.5e-3)], long_rate=5e-4,
        long_tokens=(24e5, 8e5), sequences=(1.04, 1.6)),
}

# tokens: of both phases; pieces: of the vocabulary; the others are as above.
EUROBERTS = {
    'eurobert': dict(
        model=dict(name='base', intermediate_size=3072),
        lengths=(2048, 8192), rows=2304, long_rows=576, tokens=(4800e9, 200e9), rate=1e-4,
        warmup_steps=2000, sequences=(3, 10), pieces=128_256, parts=12),
    'eurobert-tiny': dict(
        model=dict(name='tiny', intermediate_size=192, num_kv_heads=1, initializer_range=0.05),
        lengths=(64, 256), rows=32, long_rows=8, tokens=(3e5, 1e5), rate=2e-3,
        warmup_steps=20, sequences=(1, 1), pieces=8000),
}


def get_config(named: str = 'base'):
    if named in EUROBERTS:
        return eurobert_config(named)
    if named not in SCALES:
        raise ValueError(
            f'configs/modern_pretrain.py:{named} is unknown: choose ' + ', '.join(
                (*SCALES, *EUROBERTS)))
    scale = SCALES[named]
    highest_rate = scale['rates'][0][1]
    c = default_config()
    set_model(c, scale)
    c.phases = (*short_phases(scale), *long_phases(scale))
    c.data.next_sentence = False
    c.data.short_seq_prob = 0.0
    c.data.tokenizer = 'bpe'
    c.data.lowercase = False
    c.data.masked_lm_prob = 0.3
    c.optimizer.name = 'stable_adamw'
    c.optimizer.b2 = 0.98
    c.optimizer.clip_norm = 0.0
    c.optimizer.learning_rate = highest_rate
    c.optimizer.weight_decay = 1e-5 / highest_rate
    c.optimizer.warmup = warmup_of(scale)
    c.optimizer.decay = '1-sqrt'
    c.optimizer.decay_from = '100%'  # of all but the last phase: constant
    if named in ('base', 'large'):
        set_up_pod(c, scale)
    else:
        set_up_laptop(c)
    return c


def set_model(c, scale) -> None:
    """ModernBERT's architecture, of a scale."""
    c.model.type_vocab_size = 0
    c.model.positions = 'rotary'
    c.model.max_position_embeddings = scale['lengths'][1]
    c.model.pre_norm = True
    c.model.gated = True
    c.model.biases = False
    c.model.local_attention = 128
    c.model.global_every = 3
    c.model.hidden_act = c.model.pooler_act = 'gelu_erf'
    c.model.pooler_norm = True
    c.model.pools_tokens = True
    c.model.layer_norm_eps = 1e-5
    c.model.initializer = 'by_depth'
    c.model.hidden_dropout = c.model.attention_dropout = c.model.classifier_dropout = 0.0
    c.model.update(scale['model'])


def steps_of(tokens: float, rows: int, length: int) -> int:
    """Steps of so many rows of a length that have about so many tokens."""
    return max(1, round(tokens / (rows * length)))


def warmup_of(scale) -> str:
    """The warm-up as a share of the steps at the first rate, so that a shorter run shortens it."""
    steps = steps_of(scale['warmup_tokens'], scale['growing'][0], scale['lengths'][0])
    phases = [phase for phase in short_phases(scale) if 'learning_rate' not in phase]
    return f'{steps / sum(phase["steps"] for phase in phases):.3%}'


def rows_of(scale, number: int, rows: int) -> dict:
    """The fields of a phase for packed rows of the first (0) or the second (1) length."""
    return dict(
        max_seq_length=scale['lengths'][number], packed_rows=rows,
        batch_size=round(rows * scale['sequences'][number]))


def short_phases(scale) -> list[dict]:
    """Growing batches, then full ones; with a further rate, a phase for it."""
    length = scale['lengths'][0]
    rows = scale['rows']
    growing_steps = steps_of(scale['growing_tokens'], sum(scale['growing']), length)
    phases = [dict(steps=growing_steps, **rows_of(scale, 0, few)) for few in scale['growing']]
    (tokens, _), *later = scale['rates']
    rest = tokens - scale['growing_tokens']
    phases.append(dict(steps=steps_of(rest, rows, length), **rows_of(scale, 0, rows)))
    for tokens, rate in later:
        phases.append(dict(
            steps=steps_of(tokens, rows, length), learning_rate=rate, warmup=0,
            **rows_of(scale, 0, rows)))
    return phases


def long_phases(scale) -> list[dict]:
    """Longer rows at a constant rate, and then at a falling one."""
    rows = scale['long_rows']
    of_both = dict(
        rotary_base=160_000.0, learning_rate=scale['long_rate'], warmup=0,
        **rows_of(scale, 1, rows))
    constant_steps, falling_steps = (
        steps_of(tokens, rows, scale['lengths'][1]) for tokens in scale['long_tokens'])
    return [
        dict(steps=constant_steps, masked_lm_prob=0.15, **of_both),
        dict(steps=falling_steps, masked_lm_prob=0.05, decay_from='start', **of_both)]


def set_up_pod(c, scale) -> None:
    """The text, and parts and intervals of steps, for 16 chips and more."""
    c.data.source = 'wikipedia:en'
    c.data.held_out = 0.001
    c.data.vocab_size = 50_368
    c.train.accumulation_steps = scale['parts']
    c.train.eval_batch_size = 64
    c.train.max_eval_examples = 4096
    c.train.eval_every = 4000
    c.train.save_every = 1000


def set_up_laptop(c) -> None:
    """The text, and intervals of steps, for two cores."""
    c.data.held_out = 0.02
    c.data.vocab_size = 8000
    c.train.eval_batch_size = 32
    c.train.max_eval_examples = 256
    c.train.eval_every = c.train.save_every = '10%'


def eurobert_config(named: str):
    scale = EUROBERTS[named]
    c = default_config()
    set_eurobert(c, scale)
    steps = [
        steps_of(*sizes)
        for sizes in zip(scale['tokens'], (scale['rows'], scale['long_rows']), scale['lengths'])]
    c.phases = (
        dict(steps=steps[0], **rows_of(scale, 0, scale['rows'])),
        dict(steps=steps[1], masked_lm_prob=0.1, rotary_base=250_000.0, learning_rate=scale['rate'],
             warmup=0, decay_from='start', **rows_of(scale, 1, scale['long_rows'])))
    c.data.next_sentence = False
    c.data.short_seq_prob = 0.0
    c.data.tokenizer = 'bpe'
    c.data.lowercase = False
    c.data.masked_lm_prob = 0.5
    c.optimizer.name = 'adamw'
    c.optimizer.b2 = 0.95
    c.optimizer.eps = 1e-5
    c.optimizer.learning_rate = scale['rate']
    c.optimizer.weight_decay = 0.1
    c.optimizer.warmup = scale['warmup_steps']
    c.optimizer.decay_from = '100%'  # of all but the last phase: constant
    if named == 'eurobert':
        set_up_pod(c, scale)
    else:
        set_up_laptop(c)
    c.data.vocab_size = scale['pieces']
    return c


def set_eurobert(c, scale) -> None:
    """EuroBERT's architecture, of a scale."""
    c.model.type_vocab_size = 0
    c.model.embedding_norm = False
    c.model.positions = 'rotary'
    c.model.max_position_embeddings = scale['lengths'][1]
    c.model.pre_norm = True
    c.model.norm = 'rms'
    c.model.gated = True
    c.model.layer_biases = 'none'
    c.model.hidden_act = 'silu'
    c.model.pooler_act = 'gelu_erf'
    c.model.pooling = 'late'
    c.model.masked_lm_head = 'linear'
    c.model.layer_norm_eps = 1e-5
    c.model.hidden_dropout = c.model.attention_dropout = c.model.classifier_dropout = 0.0
    c.model.update(scale['model'])
