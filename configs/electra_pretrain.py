"""ELECTRA (Clark et al., 2020): a small generator replaces words, and the model learns which.

    python -m bert_jax.main --config=configs/electra_pretrain.py --config.data.vocab_file=vocab.txt
    python -m bert_jax.main --config=configs/electra_pretrain.py:tiny
    python -m bert_jax.main --config=configs/glue.py:sst2 --config.data.source=glue \\
        --config.init_checkpoint=runs/electra_pretrain-tiny --config.optimizer.layer_decay=0.8

`:small`, `:base` and `:large` are the paper's (tables 6 and 7; large is its ELECTRA-400K); `:tiny`
takes minutes on two CPU cores and needs no download. The generator is a masked LM with as many
layers, a quarter (base: a third) of the width, and the model's embeddings. At each masked position
it draws a word, by Gumbel noise on its logits; the model is a discriminator, which says of every
token whether it was replaced. As in the original program, 85 % of the masked positions hold [MASK]
when the generator reads them, and the others their own word. The loss is the generator's plus 50
times the discriminator's.

The discriminator is slow to learn, and `:tiny` is short for it. For 1,000 steps it knows little
more than that [CLS] and [SEP] are never replaced: its loss is 0.012 nats below the entropy of
`replaced_share`, all but 0.001 of it for that, and its F1 is 0. After 2,000 steps it begins to
learn from the words, and F1 is still 0 (docs/log/results.md). Of `mlm_accuracy`, about 0.15 are
words that the generator sees.

The discriminator stays: fine-tuning, `predict features` and `convert` read it from the run, without
this file. The file is a template to copy: it has a head of its own with parameters of its own,
which draws at random in its loss.

    B: batch rows, S: row length, P: masked positions a row, E: columns of an embedding,
    G: the generator's hidden size, H: hidden_size, M: slots of a part, V: vocabulary
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.config import default_config
from bert_jax.heads import base
from bert_jax.heads.masked_lm_loss import masked_lm_logits, masked_lm_loss
from bert_jax.heads.pretraining import Predictions, chunks_of_slots, unmasked_ids
from bert_jax.heads.replaced_tokens import DiscriminatorPredictions, ReplacedTokens, replaced_loss
from bert_jax.kernels import dropout as drop
from bert_jax.model.encoder import Bert, Encoder
from bert_jax.model.flops import token_flops, train_flops
from bert_jax.model.layers import Dense, ModelConfig
from bert_jax.tasks.opening import add_pretraining

WEIGHT = 50.0  # of the discriminator's loss


def generator_config(config: ModelConfig, share: float) -> ModelConfig:
    """The generator's layers: this share of the width and of the heads.

    If that is less than one head, there is one with fewer dims, as in the original program.
    """
    num_heads = max(1, round(share * config.num_heads))
    head_dim = min(config.head_dim, round(share * config.hidden_size))
    hidden_size = num_heads * head_dim
    return dataclasses.replace(
        config, num_heads=num_heads, hidden_size=hidden_size, intermediate_size=4 * hidden_size,
        embedding_size=config.num_embedding_columns)


class Generator(nn.Module):
    """A masked LM on given embeddings; its outputs are those of `Predictions`."""

    config: ModelConfig

    @nn.compact
    def __call__(self, embedded_BxSxE, batch, dropout_keys_Bx2):
        config = self.config
        project = Dense(
            config, (config.embedding_size,), (config.hidden_size,), (None,), ('embed',),
            name='embeddings_project')
        encode = Encoder(config, name='encoder')
        layers = encode(
            project(embedded_BxSxE), batch['sequence_ids'], dropout_keys_Bx2,
            batch['masked_lm_positions'])
        return Predictions(config, name='predictions')(layers[-1])


class Electra(nn.Module):
    """Discriminator and generator, which share the embeddings `bert/embeddings`."""

    config: ModelConfig
    generator_share: float

    def setup(self):
        self.bert = Bert(self.config, pooled=False)
        self.discriminator_predictions = DiscriminatorPredictions(self.config)
        self.generator = Generator(generator_config(self.config, self.generator_share))

    def generate(self, batch, dropout_keys_Bx2=None):
        """The generator's `output` for `masked_lm_logits`: hidden [B, P, E], table [V, E], bias."""
        dropout_keys_Bx2 = drop.keys_of_further_model(dropout_keys_Bx2, 1)
        embeddings = self.bert.embeddings
        embedded_BxSxE = embeddings(
            batch['input_ids'], batch['segment_ids'], dropout_keys_Bx2, batch.get('position_ids'))
        hidden_BxPxE, bias_V = self.generator(embedded_BxSxE, batch, dropout_keys_Bx2)
        table_VxE = self.config.layout(embeddings.word_embeddings, 'vocab', None)
        return hidden_BxPxE, table_VxE, bias_V

    def discriminate(self, batch, dropout_keys_Bx2=None):
        """A logit [B, S] for each token, above 0 if it was replaced."""
        x_BxSxH = self.bert(*base.inputs_of(batch, dropout_keys_Bx2))['sequence_output']
        return self.discriminator_predictions(x_BxSxH)

    def __call__(self, batch, dropout_keys_Bx2=None):
        return self.generate(batch, dropout_keys_Bx2), self.discriminate(batch, dropout_keys_Bx2)


def drawn_words(output, dropout_keys_Bx2, chunks):
    """Words [B, P] drawn from the generator's softmax, in `chunks` parts of the slots."""
    hidden_BxPxE, table_VxE, bias_V = jax.lax.stop_gradient(output)

    def draw(part):
        hidden_BxMxE, slots_BxM = part
        logits_BxMxV = masked_lm_logits((hidden_BxMxE, table_VxE, bias_V))
        noise_BxMxV = drop.gumbel(
            dropout_keys_Bx2, logits_BxMxV.shape[1:], drop.HEAD, lines_BxL=slots_BxM)
        return jnp.argmax(logits_BxMxV + noise_BxMxV, axis=-1)

    num_rows, num_slots = hidden_BxPxE.shape[:2]
    slots_BxP = jnp.broadcast_to(jnp.arange(num_slots), (num_rows, num_slots))
    parts = [
        jnp.stack(jnp.split(x, chunks, axis=1)) for x in (hidden_BxPxE, slots_BxP)]
    drawn = jax.lax.map(draw, tuple(parts))
    return jnp.concatenate(list(drawn), axis=1)


def with_words(batch, words_BxP):
    """The ids [B, S] of a masked batch with these words at its masked positions."""
    return unmasked_ids({**batch, 'masked_lm_ids': words_BxP.astype(batch['input_ids'].dtype)})


@dataclasses.dataclass(frozen=True)
class ElectraPretraining(ReplacedTokens):
    """The masked-LM loss of the generator plus 50 times the mean loss of the discriminator.

    Its name is that of the discriminator's head, so a run is read as a model with that head, and
    the generator's parameters are left out.
    """

    shown = {'mlm_accuracy': 'mlm accuracy', 'replaced_accuracy': 'replaced accuracy',
             'replaced_f1': 'f1'}
    metric = 'replaced_f1'

    generator_share: float = 0.25

    @property
    def module(self):
        return Electra(self.config, self.generator_share)

    def totals(self, batch):
        num_tokens = jnp.sum((batch['sequence_ids'] > 0).astype(jnp.float32))
        return {
            'masked': jnp.maximum(jnp.sum(batch['masked_lm_weights']), 1.0),
            'tokens': jnp.maximum(num_tokens, 1.0)}

    def loss(self, params, batch, totals, dropout_keys_Bx2):
        tree = {'params': params}
        weights_BxP = batch['masked_lm_weights']
        chunks = chunks_of_slots(self.config, weights_BxP)
        output = self.module.apply(tree, batch, dropout_keys_Bx2, method='generate')
        words = masked_lm_loss(
            output, batch['masked_lm_ids'], weights_BxP, chunks, self.config.layout)
        original_BxS = unmasked_ids(batch)
        # An evaluation has no dropout keys: its draws follow from the rows.
        keys_Bx2 = dropout_keys_Bx2
        if keys_Bx2 is None:
            keys_Bx2 = drop.keys_from_content(original_BxS)
        replaced_BxS = with_words(batch, drawn_words(output, keys_Bx2, chunks))
        # A word that is drawn in its own place is not replaced.
        labels_BxS = replaced_BxS != original_BxS
        logits_BxS = self.module.apply(
            tree, {**batch, 'input_ids': replaced_BxS}, dropout_keys_Bx2, method='discriminate')
        sums = {
            'mlm_loss': words.loss, 'mlm_correct': words.correct,
            'mlm_count': jnp.sum(weights_BxP), 'rows': jnp.sum(batch['example_weights']),
            **discriminator_sums(logits_BxS, labels_BxS, batch['sequence_ids'] > 0)}
        of_generator = words.loss / totals['masked']
        return of_generator + WEIGHT * sums['replaced_loss'] / totals['tokens'], sums

    def score(self, sums):
        num_tokens = max(sums['tokens'], 1.0)
        named = sums['replaced_found'] + sums['replaced_missed'] + sums['replaced_wrong']
        metrics = {
            'replaced_loss': sums['replaced_loss'] / num_tokens,
            'replaced_accuracy': sums['replaced_correct'] / num_tokens,
            'replaced_share': (sums['replaced_found'] + sums['replaced_missed']) / num_tokens,
            'replaced_f1': 2 * sums['replaced_found'] / max(sums['replaced_found'] + named, 1.0)}
        if sums['mlm_count']:
            loss = sums['mlm_loss'] / sums['mlm_count']
            metrics['mlm_loss'] = loss
            metrics['mlm_perplexity'] = math.exp(min(loss, 700.0))
            metrics['mlm_accuracy'] = sums['mlm_correct'] / sums['mlm_count']
        return metrics

    def loss_of_chance(self):
        return math.log(self.config.vocab_size) + WEIGHT * math.log(2)

    def flops(self, max_seq_length, max_predictions_per_seq, pairs_a_row=1):
        hidden = self.config.hidden_size
        generator = generator_config(self.config, self.generator_share)
        a_token = token_flops(self.config, max_seq_length) + 2 * hidden**2 + 2 * hidden
        of_generator = train_flops(generator, max_seq_length, max_predictions_per_seq, num_cls=0)
        return 3.0 * max_seq_length * a_token + of_generator


def discriminator_sums(logits_BxS, labels_BxS, is_token_BxS):
    """Sums over the tokens: of the losses, and of how many are found, missed and wrongly named."""
    losses_BxS, correct_BxS = replaced_loss(logits_BxS, labels_BxS)
    is_named_BxS = logits_BxS > 0
    summed = {
        'tokens': 1.0,
        'replaced_loss': losses_BxS,
        'replaced_correct': correct_BxS,
        'replaced_found': labels_BxS & is_named_BxS,
        'replaced_missed': labels_BxS & ~is_named_BxS,
        'replaced_wrong': ~labels_BxS & is_named_BxS}
    return {name: jnp.sum(is_token_BxS * x, dtype=jnp.float32) for name, x in summed.items()}


SCALES = ('small', 'base', 'large', 'tiny')


def get_config(scale: str = 'small'):
    if scale not in SCALES:
        raise ValueError(
            f"configs/electra_pretrain.py:{scale} is unknown: choose {', '.join(SCALES)}")
    share = 1 / 3 if scale == 'base' else 1 / 4
    add_pretraining('electra', ElectraPretraining, generator_share=share)
    c = default_config('pretrain_electra')
    c.data.next_sentence = False
    c.data.mask_rate = 0.85
    c.data.random_rate = 0.0
    # As transformers' ELECTRA computes, so that the discriminator can be written as one.
    c.model.hidden_act = c.model.pooler_act = 'gelu_erf'
    if scale == 'tiny':
        set_tiny(c)
        return c
    c.data.source = 'wikipedia:en'
    c.data.held_out = 0.001
    c.data.vocab_size = 30522
    c.train.eval_every = '1%'
    c.train.save_every = 5000
    c.train.max_eval_examples = 10_240
    c.optimizer.warmup = 10_000
    c.optimizer.learning_rate = 2e-4
    c.data.max_seq_length = 512
    if scale == 'small':
        c.model.name = 'L-12_H-256_A-4'
        c.model.embedding_size = 128
        c.data.max_seq_length = 128
        c.train.batch_size = 128
        c.train.steps = 1_000_000
        c.optimizer.learning_rate = 5e-4
    elif scale == 'base':
        c.model.name = 'base'
        c.train.batch_size = 256
        c.train.steps = 766_000
    else:
        c.model.name = 'large'
        c.data.masked_lm_prob = 0.25
        c.train.batch_size = 2048
        c.train.steps = 400_000
    return c


def set_tiny(c) -> None:
    """Model, text and steps of configs/quickstart.py, which says what they are for."""
    c.model.name = 'tiny'
    c.model.max_position_embeddings = 128
    c.model.initializer_range = 0.05
    c.model.hidden_dropout = c.model.attention_dropout = 0.0
    c.data.source = 'docs:python'
    c.data.vocab_size = 8000
    c.data.held_out = 0.02
    again = dict(learning_rate=1e-3, warmup='10%')
    c.phases = (
        dict(steps=4000, max_seq_length=32),
        dict(steps=500, max_seq_length=64, **again),
        dict(steps=400, max_seq_length=128, **again),
    )
    c.train.batch_size = 32
    c.train.eval_every = 1000
    c.train.save_every = 1000
    c.train.max_eval_examples = 1024
    c.train.log_every = 100
    c.optimizer.name = 'muon'
    c.optimizer.learning_rate = 2e-3
    c.optimizer.warmup = '10%'
