"""Every field of the config, one row each: default, allowed values, role, and who reads it.

The model's fields are those of `bert_config.py`.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from bert_jax.config.bert_config import BELOW_1, COMPUTATION, OPTIONS, Option
from bert_jax.config.choices import (
    ADAPTERS,
    DECAYS,
    FEATURES,
    MASKINGS,
    MOST_SIMILAR,
    TOKEN_TYPES,
    TRUNCATIONS,
    WINDOWS,
)
from bert_jax.runtime.schema import Allowed, Range, count

# Groups of tasks that read a field: pre-training, all others, or some of those on your own files.
PRETRAINING = ('pretrain', 'synthetic')
LABELLED = ('downstream tasks',)
_TEXT_TASKS = ('classification', 'regression')
_WITH_ID = (*_TEXT_TASKS, 'multiple_choice')
_SEARCH = ('retrieval', 'reranking')
_OWN_FILES = (*_WITH_ID, 'tagging', *_SEARCH)
SECTIONS = (  # of some tasks only
    'classification', 'regression', 'conll', 'tagging', 'squad', *_SEARCH)

# What another value of a field means for a run:
#   model     another run: of another task or another model
#   data      other examples, or other rows, labels or masks of the same ones
#   training  steps that train in another way: other order, batches, updates
#   result    the same steps, of which something else comes out: more of them, another choice
#             among evaluations, another rounding
#   compute   the same result at another speed
#   place     the same files in another place
#   logging   the same run, reported, saved or timed in another way
#   derived   another value of a field from which this follows (only in config.json)
Role = Literal['model', 'data', 'training', 'result', 'compute', 'place', 'logging', 'derived']
# Runs that differ in fields of these roles have different results.
CHANGES_RESULT: frozenset[Role] = frozenset({'model', 'data', 'training', 'result'})


def pretraining_kind(task: str) -> str:
    """'pretrain', on text, or 'synthetic', on random tokens; '' for all other tasks.

    A config file may add tasks of these kinds, called pretrain_NAME and synthetic_NAME.
    """
    kind = task.partition('_')[0]
    return kind if kind in PRETRAINING else ''


class Field(NamedTuple):
    """A field of the config.

    Attributes:
      default: None: `init_checkpoint`, or what is read, determines it.
      allowed: a range, a tuple of values, or a kind that `checking` knows; 'elsewhere': the code
        that reads the field checks it.
      role: what another value means for a run.
      read_by: names of tasks; empty: all tasks read it.
      downstream: the default in all tasks but pre-training; None: it is the same there.
      downstream_role: the role in all tasks but pre-training; None: it is the same there.
      silent: whether a run may resume with another value without a message, as it may with all
        fields of the roles 'place' and 'logging'.
      step_argument: whether the compiled step takes the value as an argument, so that runs which
        differ in it share the step.
      formerly: defaults of older versions, which their runs have recorded as if they were chosen.
    """

    default: Any
    allowed: Allowed | Literal['text', 'path', 'duration', 'decay', 'trace', 'steps', 'elsewhere']
    role: Role
    read_by: tuple[str, ...] = ()
    downstream: Any = None
    downstream_role: Role | None = None
    silent: bool = False
    step_argument: bool = False
    formerly: tuple[Any, ...] = ()

    def default_of(self, task: str) -> Any:
        """The default in a task, also in one that a config file defines."""
        if pretraining_kind(task) or self.downstream is None:
            return self.default
        return self.downstream

    def role_of(self, task: str) -> Role:
        """The role in a task, also in one that a config file defines."""
        if pretraining_kind(task) or self.downstream_role is None:
            return self.role
        return self.downstream_role

    def as_now(self, recorded: Any) -> Any:
        """The value that a run has recorded; today's default if it was the default."""
        return self.default if recorded in self.formerly else recorded

    def is_silent(self, task: str) -> bool:
        """Whether a run of a task may resume with another value without a message."""
        return self.silent or self.role_of(task) in ('place', 'logging')


_SHARE = Range(0, 1)
_SIMILARITY = Range(0, MOST_SIMILAR)
_SWITCH = (False, True)

_TEXTS = {
    # Comma-separated names, of which the first picks the best evaluation; empty: the usual ones.
    'metrics': Field('', 'elsewhere', 'data'),
    # How to predict texts longer than data.max_seq_length. first: truncated, as in training; mean,
    # max: in windows, whose probabilities are combined; empty: first, or the evaluated model's.
    'windows': Field('', ('', *WINDOWS), 'data'),
}
_TAGGING = {
    'document_context': Field(False, _SWITCH, 'data'),  # neighbouring sentences fill the window
    # Empty: fine-tuning; else which features of a frozen encoder a BiLSTM gets (paper table 7).
    'features': Field('', ('', *FEATURES), 'data'),
}


def _model_field(option: Option) -> Field:
    """The field of a model option; unless it affects training only, a checkpoint determines it."""
    default = option.default if option.effect == 'trains' else None
    read_by = LABELLED if option.name == 'bilstm' else ()
    return Field(default, option.allowed, 'model', read_by)


FIELDS: Mapping[str, Field] = {
    'task': Field('pretrain', 'elsewhere', 'model'),  # one of tasks.opening.TASKS
    # Of parameters, data order, masks and dropout.
    'seed': Field(0, count(2**31 - 1, least=0), 'training', step_argument=True),
    # Three steps, a short evaluation and a save, in a folder of its own, to see that a run works.
    'debug': Field(False, _SWITCH, 'model'),
    # Parameters to start from: a run directory, a TF1 checkpoint prefix, a .zip of one's folder, a
    # Hugging Face folder, or hf:ORG/NAME[@REVISION] of its hub.
    'init_checkpoint': Field('', 'path', 'training'),

    # One of MODEL_SIZES, or empty: the size of init_checkpoint. The four sizes override it.
    'model.name': Field('base', 'text', 'model'),
    # 0: as many as the vocabulary has.
    'model.vocab_size': Field(0, count(2**24, least=0), 'model'),
    # Fields that a checkpoint determines are empty: as in init_checkpoint, else the default.
    **{f'model.{option.name}': _model_field(option)
       for option in OPTIONS if option.name != 'vocab_size'},
    'model.dtype': Field('auto', COMPUTATION['dtype'], 'result'),  # bfloat16 on TPU and GPU
    # For the backward pass, dots keeps the outputs of matrix products, full only the inputs of
    # layers, none everything.
    'model.remat': Field('none', COMPUTATION['remat'], 'compute'),
    # kernel is this project's, for TPUs and GPUs; cudnn is NVIDIA's, without dropout.
    'model.attention': Field('auto', COMPUTATION['attention'], 'compute'),

    'data.source': Field('docs:python', 'elsewhere', 'data'),  # or a list of (source, weight)
    # The weights of a list are multiplied by the sources' token counts to this power: 0.7 is
    # multilingual BERT's, 1 samples all text equally often.
    'data.mix_power': Field(0.0, _SHARE, 'data', PRETRAINING),
    # The held-out text, or the file to score; empty: the share `held_out` of `source`, or the
    # evaluation sets in a benchmark's folder.
    'data.eval_source': Field('', 'text', 'data'),
    # Share of the text or file that is held out for evaluation. A corpus is large; a table of your
    # own is small, and a hundredth of it would score nothing.
    'data.held_out': Field(
        0.01, BELOW_1, 'data', (*PRETRAINING, *_OWN_FILES, 'squad_v1', 'squad_v2'), downstream=0.1),
    # A vocab.txt, tokenizer.json, SentencePiece .model, .letters or .kmers; empty: that of
    # init_checkpoint, or train one of `vocab_size`.
    'data.vocab_file': Field('', 'path', 'data', silent=True),
    # File of words to add to the vocabulary, one a line. They take [unused] slots first, then new
    # rows of the word table, and start at the mean of their old pieces' embeddings.
    'data.add_tokens': Field('', 'path', 'data', silent=True),
    # What to train if vocab_file is empty: wordpiece, bpe (byte-level) or unigram; or, without
    # training, letters, letters:ACGTN or kmer:6. Where vocab_file is set, the file is what counts.
    'data.tokenizer': Field('wordpiece', 'text', 'data', PRETRAINING),
    'data.vocab_size': Field(8000, count(2**24, least=16), 'data', PRETRAINING),
    # Empty: as the files beside vocab_file say, else init_checkpoint, else the pieces' capitals.
    'data.lowercase': Field(None, _SWITCH, 'data'),
    # Whether accents are stripped; empty: as the tokenizer_config.json beside the vocabulary says,
    # else if text is lower-cased and the kind is WordPiece. Stripping drops the vowel signs of
    # Hindi, Thai and others too.
    'data.strip_accents': Field(None, _SWITCH, 'data'),
    # Token stores and trained vocabularies, kept by fingerprint; for several hosts a bucket or a
    # folder that all share.
    'data.dir': Field('~/.cache/bert_jax', 'path', 'place'),
    # Each host's copies from data.dir.
    'data.local_dir': Field('~/.cache/bert_jax', 'path', 'place'),
    # How many blocks of a token store (of half a million tokens each) are shuffled at once. A text
    # of at most so many is shuffled whole; a longer one is read in windows of random blocks, which
    # together hold so many in memory for each such text, on all hosts together.
    'data.shuffle_blocks': Field(1024, count(2**40), 'data', PRETRAINING),
    # Prepared tensorflow-datasets; empty: their default place.
    'data.tfds_dir': Field('', 'path', 'place'),
    'data.max_seq_length': Field(128, count(2**16), 'data'),
    # How a pair of texts that is too long is cut: google (as the original), longest_first,
    # only_first or only_second (as transformers). Empty: as init_checkpoint's run did; for a folder
    # of transformers longest_first, else google.
    'data.truncation': Field('', ('', *TRUNCATIONS), 'data', LABELLED),
    # The types of a pair's tokens: segments (1 from the second text on), template (as the tokenizer
    # states them) or zeros. Empty: as init_checkpoint's run had them; for a folder of transformers
    # as there; else template.
    'data.token_types': Field('', ('', *TOKEN_TYPES), 'data', LABELLED),
    # Slots for the masked positions of a row; 0: as many as `masked_lm_prob` of a full row of the
    # phase needs, such as 20 for 128 tokens.
    'data.max_predictions_per_seq': Field(0, count(2**16, least=0), 'data', PRETRAINING),
    # Shorter documents are left out.
    'data.min_sentences': Field(1, count(10**6), 'data', PRETRAINING),
    # Sentences longer than half a row count as several when rows are made, so that all their words
    # are in some row. False: as in the original, which shows only the middle of them.
    'data.split_long_sentences': Field(True, _SWITCH, 'data', PRETRAINING),
    # So many files of the text may be damaged: what stands before the bad place of one is used,
    # and the store's manifest names it. More are an error that names them all.
    'data.max_bad_files': Field(0, count(10**9, least=0), 'place', ('pretrain',)),
    # Documents that are so similar to an earlier one are left out, by MinHash on runs of five
    # tokens: from 0.5 to 0.95, such as 0.8. 0: only exact duplicates are. This and the next two are
    # about the texts of data.source, not data.eval_source, when their stores are built.
    'data.near_duplicates': Field(0.0, _SIMILARITY, 'data', ('pretrain',)),
    # Evaluation files, comma-separated: tables or text whose runs of 13 words are looked for in the
    # training text, and counted.
    'data.decontaminate': Field('', 'text', 'data', ('pretrain',)),
    # Whether documents that hold such a run are left out.
    'data.remove_contaminated': Field(False, _SWITCH, 'data', ('pretrain',)),
    'data.masked_lm_prob': Field(0.15, _SHARE, 'data', PRETRAINING),
    # Shares of the masked positions that become [MASK] and a random piece; the rest stay the same.
    'data.mask_rate': Field(0.8, _SHARE, 'data', PRETRAINING),
    'data.random_rate': Field(0.1, _SHARE, 'data', PRETRAINING),  # see data.mask_rate
    # 0: new pairs and masks every epoch; 10: ten versions of them in turn, as in the original.
    'data.num_maskings': Field(0, count(10**6, least=0), 'data', PRETRAINING),
    'data.short_seq_prob': Field(0.1, _SHARE, 'data', PRETRAINING),
    'data.random_next_prob': Field(0.5, _SHARE, 'data', PRETRAINING),
    # What is masked together. Each ideograph is a word, so for Chinese `words` masks what `pieces`
    # does.
    'data.masking': Field('pieces', MASKINGS, 'data', PRETRAINING),
    # False: one segment, no NSP loss.
    'data.next_sentence': Field(True, _SWITCH, 'data', PRETRAINING),
    # Columns of your own file. Empty: `text` (for tags `tokens`), or the one column of a usual name
    # that a table has instead; for pre-training on tables, `text`. A column that is named is read.
    'data.text': Field(
        None, 'text', 'data', ('pretrain', *_OWN_FILES), formerly=('text', 'tokens')),
    'data.text_pair': Field('', 'text', 'data', (*_TEXT_TASKS, *_SEARCH)),
    # With several labels per example: one column, or columns of 0 and 1, one for each label,
    # comma-separated. Empty: `label` (for tags `tags`), or the one column of a usual name.
    'data.label': Field(None, 'text', 'data', _OWN_FILES, formerly=('label', 'tags')),
    # Names of labels that are numbers from 0: comma-separated, or a file with one name a line.
    # Empty: those that a Parquet file of Hugging Face's datasets holds.
    'data.label_names': Field('', 'text', 'data', ('classification', 'tagging')),
    # Columns, comma-separated: of the choices, or of hard negatives.
    'data.choices': Field('', 'text', 'data', ('multiple_choice', *_SEARCH)),
    # Names rows in predictions; empty: counted from 0.
    'data.id': Field('', 'text', 'data', (*_WITH_ID, *_SEARCH)),
    # Examples share rows; scores stay the same.
    'data.packing': Field(True, _SWITCH, 'result', LABELLED),
    # Share of the rows that may be malformed, and are left out; more is an error.
    'data.max_malformed': Field(0.01, _SHARE, 'data', LABELLED),

    'train.steps': Field(0, 'duration', 'result'),  # 0: the sum of the phases' steps
    'train.batch_size': Field(256, count(2**22), 'training'),  # sequences a step, over all devices
    # Number of rows that a step's sequences share in pre-training; 0: a row for each sequence.
    'train.packed_rows': Field(0, count(2**22, least=0), 'data', PRETRAINING),
    # Parts that a batch is split into.
    'train.accumulation_steps': Field(1, count(2**16), 'compute'),
    # 0: only at the end.
    'train.eval_every': Field(0, 'duration', 'logging', downstream_role='result'),
    # A run ends after so many evaluations in a row without a new best; 0: it does all steps.
    'train.patience': Field(0, count(10**6, least=0), 'result', LABELLED),
    'train.eval_batch_size': Field(256, count(2**18), 'compute', PRETRAINING),
    # Of the held-out rows, a fixed random sample; 0: all.
    'train.max_eval_examples': Field(
        2**16, count(2**40, least=0), 'result', PRETRAINING, silent=True),
    'train.save_every': Field(0, 'duration', 'logging'),  # 0: only at the end
    # A run also saves so often, so that it loses little if it is killed (on several hosts, at log
    # lines); such a checkpoint is kept until the next one. 0: not by time.
    'train.save_minutes': Field(5.0, Range(0, 1e6), 'logging'),
    # Interval of the check that each chip and its neighbour get the same gradient from the same
    # rows; 0: none.
    'train.verify_every': Field(0, 'duration', 'compute', silent=True),
    'train.keep_checkpoints': Field(2, count(10**6), 'logging'),
    'train.log_every': Field(100, 'duration', 'logging'),
    # Steps that train on rows other than those planned, which no other step of that length uses.
    'train.skip_steps': Field((), 'steps', 'data', PRETRAINING),
    # '100..110': a trace of these steps, for TensorBoard; '100..110@0,3': on these hosts.
    'train.profile': Field('', 'trace', 'logging'),
    # Beside metrics.jsonl, comma-separated: tensorboard, wandb, cloud_monitoring (on every host).
    'train.loggers': Field('tensorboard', 'elsewhere', 'logging'),
    # What the run is compared with while it trains: the name of a recipe that has a reference, or a
    # file that tools.report --reference made. It warns where it leaves it; empty: no comparison.
    'train.reference': Field('', 'text', 'logging', PRETRAINING),

    # bert_adamw (no bias correction) | adamw | stable_adamw (ModernBERT's; no clip_norm needed) |
    # lamb | muon, or any optimizer of optax: lion, ...
    'optimizer.name': Field('bert_adamw', 'elsewhere', 'training'),
    # Of one of optax's optimizers: 'b1=0.95, b2=0.98'; of muon: 'momentum=0.95'.
    'optimizer.arguments': Field('', 'text', 'training'),
    'optimizer.learning_rate': Field(
        1e-4, Range(0, 1000, without=(0,)), 'training', step_argument=True),
    'optimizer.warmup': Field('1%', 'duration', 'training'),
    # Of the rate: to 0, but for inverse_sqrt (Transformer's), which falls as 1 / sqrt(step).
    'optimizer.decay': Field('polynomial', DECAYS, 'training'),
    # Of what the decay leaves of the rate. 1: linear, half a cosine, ...; 0: constant.
    'optimizer.decay_power': Field(1.0, Range(0, 100), 'training'),
    # Where the decay begins. start: at the first step, as if without warm-up (as in the original) |
    # peak: after the warm-up | '90%': there, after a constant rate (warmup-stable-decay) | '100%':
    # never.
    'optimizer.decay_from': Field('start', 'decay', 'training'),
    # N: the run ends with the mean of the weights after each of the last N steps; 0: no mean.
    'optimizer.average': Field(0, 'duration', 'training'),
    # The last layer's rate is multiplied by this, that of the layer before by its square, ...
    'optimizer.layer_decay': Field(1.0, Range(0, 1, without=(0,)), 'training'),
    # A regular expression such as 'embeddings|layer_[0-3]/'. Parameters whose names (as in
    # 'bert/encoder/layer_0/...') contain a match are not trained.
    'optimizer.frozen': Field('', 'text', 'training'),
    # Not on biases and LayerNorm.
    'optimizer.weight_decay': Field(0.01, Range(0, 1000), 'training'),
    # b1, b2 and eps are for the optimizers that are not optax's.
    'optimizer.b1': Field(0.9, BELOW_1, 'training'),
    'optimizer.b2': Field(0.999, BELOW_1, 'training'),  # see optimizer.b1
    'optimizer.eps': Field(1e-6, _SHARE, 'training'),  # see optimizer.b1
    # Global gradient norm; 0: no clipping.
    'optimizer.clip_norm': Field(1.0, Range(0, 1e9), 'training'),

    # With an adapter, only it and the head are trained; everything else stays as in
    # init_checkpoint. lora | rslora (scaled by alpha / sqrt(rank)) | dora (the lengths of columns
    # are parameters, too) | bitfit (biases, without rank).
    'adapter.kind': Field('lora', ADAPTERS, 'model', LABELLED),
    # Of the matrices beside those of the layers; 0: no adapter.
    'adapter.rank': Field(0, count(2**16, least=0), 'model', LABELLED),
    # They are scaled by alpha / rank.
    'adapter.alpha': Field(16.0, Range(0, 1e6, without=(0,)), 'model', LABELLED),
    'adapter.dropout': Field(0.0, BELOW_1, 'training', LABELLED),
    # Comma-separated: query, key, value, attention_output (attention: these four), intermediate,
    # output, or all.
    'adapter.targets': Field('query,value', 'text', 'model', LABELLED),

    # The batch, master weights and moments are split over data x fsdp devices. Gradients are summed
    # over fsdp first, so its devices should be neighbours. -1: the remaining devices; if both are
    # -1, fsdp takes an axis of a TPU slice, half of a slice without a ring, or a host of GPUs.
    'mesh.data': Field(-1, count(2**20, least=-1), 'compute', silent=True),
    'mesh.fsdp': Field(-1, count(2**20, least=-1), 'compute', silent=True),  # see mesh.data
    # Splits heads, intermediate and vocabulary.
    'mesh.tensor': Field(1, count(2**20), 'compute', silent=True),
    # In which devices exchange large parameters and their gradients. auto: in the compute dtype.
    'mesh.message_dtype': Field('auto', COMPUTATION['dtype'], 'result'),
    # Whether TPUs sum gradients while they compute others. Preflight predicts a gain on v5e, which
    # no chip has confirmed.
    'mesh.async_sums': Field(False, _SWITCH, 'compute'),

    # Parts of the run: {steps, max_seq_length, max_predictions_per_seq, batch_size}; fields that a
    # phase lacks come from `train` and `data`. The optimizer's moments carry over from phase to
    # phase, and one learning-rate schedule spans them all; a phase with a `learning_rate` (and
    # `warmup`, `decay_from`) starts its own schedule. `masked_lm_prob`, `masking` and `source`
    # (weights of what data.source lists) apply to the phase's rows; a `causal` phase reads them
    # left to right, without the NSP loss. `rotary_base` is that of the phase's model, which a
    # checkpoint of the phase then has. PHASE_FIELDS lists all fields of a phase.
    'phases': Field((), 'elsewhere', 'result'),

    # Sections that only some tasks have.

    'classification.multi_label': Field(False, _SWITCH, 'data'),  # any number of labels an example
    # Between the labels in a cell; empty: it is found, and said.
    'classification.separator': Field('', 'text', 'data'),
    # Factors of the loss: 'balanced' (inverse to label frequency), or 'LABEL=2.5, ...'. For several
    # labels per example, they are those of examples that have the label.
    'classification.class_weights': Field('', 'elsewhere', 'data'),
    'classification.label_smoothing': Field(0.0, BELOW_1, 'data'),  # for one label per example
    **{f'classification.{name}': field for name, field in _TEXTS.items()},
    **{f'regression.{name}': field for name, field in _TEXTS.items()},
    **{f'conll.{name}': field for name, field in _TAGGING.items()},
    **{f'tagging.{name}': field for name, field in _TAGGING.items()},
    # Pieces from one window of a text to the next.
    'squad.doc_stride': Field(128, count(2**16), 'data'),
    'squad.max_query_length': Field(64, count(2**16), 'data'),  # pieces of a question
    # What stands before each query, and before each document and hard negative; the model's folder
    # has them as prompts, `query` and `document`. Where it is not set, the prompt is that of
    # init_checkpoint; '' is none.
    'retrieval.query_prompt': Field(None, 'text', 'data'),
    'retrieval.document_prompt': Field(None, 'text', 'data'),  # see retrieval.query_prompt
    # Comma-separated; the first picks the best evaluation. ndcg_at_K, mrr_at_K, recall_at_K and
    # accuracy_at_K with any K, or for pairs with scores spearman and pearson; empty: the usual.
    'retrieval.metrics': Field('', 'elsewhere', 'data'),
    # Tables of what is ranked when the run is scored, of the queries, and of the judgements, with
    # BEIR's columns: _id, title and text; _id and text; query-id, corpus-id and score. Empty: the
    # held-out documents are ranked for the held-out queries.
    'retrieval.corpus': Field('', 'path', 'data'),
    'retrieval.queries': Field('', 'path', 'data'),  # see retrieval.corpus
    'retrieval.qrels': Field('', 'path', 'data'),  # see retrieval.corpus
    # How vectors are made. Empty: as init_checkpoint makes them, else the mean.
    'retrieval.pool': Field('', ('', 'mean', 'cls'), 'data'),
    # Numbers of columns, or shares of them below 1, to which vectors can be cut; they are trained
    # to work alone (Matryoshka). The whole vectors always are.
    'retrieval.dims': Field('', 'elsewhere', 'training'),
    'retrieval.temperature': Field(0.05, Range(0, 1000, without=(0,)), 'training'),  # of cosines
    'retrieval.learn_temperature': Field(False, _SWITCH, 'training'),  # it starts from that
    # Whether documents have to find their queries, too.
    'retrieval.symmetric': Field(False, _SWITCH, 'training'),
    # Of pairs with scores: those with this or more are trained on as queries with documents; 0:
    # the cosines of all pairs are to have the order of the scores.
    'retrieval.least_score': Field(0.0, Range(-1e9, 1e9), 'training'),
    # contrastive (cross-entropy of the relevant documents in their group) | listnet | ranknet |
    # lambda (LambdaLoss) | binary (each document by itself).
    'reranking.loss': Field(
        'contrastive', ('contrastive', 'listnet', 'ranknet', 'lambda', 'binary'), 'training'),
    # The most documents of a query that are compared with each other; a row holds them all.
    'reranking.group_size': Field(8, count(2**10, least=2), 'training'),
    # Comma-separated, as for retrieval; the first picks the best evaluation. Empty: the usual.
    'reranking.metrics': Field('', 'elsewhere', 'data'),
    'reranking.corpus': Field('', 'path', 'data'),  # see retrieval.corpus
    'reranking.queries': Field('', 'path', 'data'),  # see retrieval.corpus
    'reranking.qrels': Field('', 'path', 'data'),  # see retrieval.corpus
    # A ranking of that corpus in trec_eval's format, as a retrieval run's dev_rankings.trec is: the
    # documents that are ranked anew when the run is scored.
    'reranking.candidates': Field('', 'path', 'data'),
}

# What a run's config.json holds beside the config: entries, and sections with entries.
RECORDED: Mapping[str, Field] = {
    'vocabulary': Field(None, 'elsewhere', 'data', silent=True),  # its digest
    # Digests and counts of the data that are trained on and scored.
    'identity': Field(None, 'elsewhere', 'data'),
    'identity.vocabulary': Field(None, 'elsewhere', 'data', silent=True),  # the file is compared
    # The step of init_checkpoint, where that is a run, and a checksum of that save.
    'init_step': Field(None, 'elsewhere', 'result'),
    'init_saved': Field(None, 'elsewhere', 'result'),
    'head': Field(None, 'elsewhere', 'derived'),
    'labels': Field(None, 'elsewhere', 'derived'),
    'metric': Field(None, 'elsewhere', 'derived'),
    'guessing': Field(None, 'elsewhere', 'derived'),
    # The file that defines the run's head or its task, if they are not the package's.
    'config_file': Field(None, 'elsewhere', 'result'),
    'config_file.name': Field(None, 'elsewhere', 'logging'),
    'parameters': Field(None, 'elsewhere', 'derived'),  # their number
    'step_flops': Field(None, 'elsewhere', 'derived'),  # of the model, for each phase
    'inference': Field(None, 'elsewhere', 'derived', silent=True),
    'made': Field(None, 'elsewhere', 'logging'),  # the command, code and versions
}
_ENTRIES = {**FIELDS, **RECORDED}
# Fields that this version does not have.
_UNKNOWN_OF_MODEL = Field(None, 'elsewhere', 'model')
_UNKNOWN = Field(None, 'elsewhere', 'result')


def field_of(name: str) -> Field:
    """The field of an entry of a run's config.json, which another version may have written.

    Args:
      name: dotted, such as 'train.steps', 'phases.1.steps' or 'identity.vocabulary'.
    """
    section = name.partition('.')[0]
    for known in (name, section):
        if known in _ENTRIES:
            return _ENTRIES[known]
    if section == 'model':
        return _UNKNOWN_OF_MODEL
    return _UNKNOWN


def section_of(task: str) -> str:
    """The section of fields that belongs to this task ('squad' for 'squad_v1'), or ''."""
    name = task.partition('_')[0]
    if name not in SECTIONS:
        return ''
    return name


def flat_fields(tree: Any, prefix: str = '') -> dict[str, Any]:
    """The values of a ConfigDict or of nested dicts, by dotted name."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if hasattr(value, 'items'):
            values |= flat_fields(value, f'{prefix}{key}.')
        else:
            values[f'{prefix}{key}'] = value
    return values
