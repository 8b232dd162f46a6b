"""Files of other programs: what is read here is what those programs read, or a line says it is not.

The other classes judge how a command ends. These compare ids with transformers' tokenizers, labels
with Python's csv and json and with pyarrow, and outputs of models with transformers' own.
"""

import bz2
import csv
import dataclasses
import gzip
import importlib.util
import io
import json
import random
import re
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.rows.table import read_table
from tests.abuse.classes.case import Case, write
from tests.abuse.commands import Answer
from tests.tokenizer_files import LIBRARY_KINDS, write_tokenizer

_DIFFERS = 'DIFFERS: '  # begins what an act prints if it finds a difference
_WORDS = (
    'the', 'cat', 'sat', 'on', 'Ünïcödé', 'café', 'e-mail:', 'talking', '12,345', '東京と京都',
    'हिन्दी', '서울', 'Москва', '“quoted”', '…', '[MASK]', '<mask>', '</s>', 'ﬁﬂ', '½', '😀', 'NEW',
    'new', '\u200b', "didn't", '  ', '\t', 'İ', 'ß', 'Σ', 'x' * 30)
_NAMES = {
    '[': {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'mask_token': '[MASK]',
          'unk_token': '[UNK]'},
    '<': {'cls_token': '<s>', 'sep_token': '</s>', 'pad_token': '<pad>', 'mask_token': '<mask>',
          'unk_token': '<unk>'},
}
_LENGTHS = (8, 9, 12)
# The first and the last character of what random words are drawn from.
_RANGES = ('!~', '\xa1\u024f', '\u0300\u036f', '\u0370\u058f', '\u0590\u06ff', '\u0900\u0dff',
           '\u1100\u11ff', '\u1e00\u1fff', '\u2000\u206f', '\u20a0\u214f', '\u3000\u30ff', '一龥',
           '가힣', '\uf900\ufaff', '\ufb00\ufdff', '\ufe00\ufe6f', '\uff00\uffef', '𐐀𐑏')


def is_possible() -> bool:
    """Whether the programs to compare with are installed."""
    return all(importlib.util.find_spec(name) for name in ('transformers', 'torch', 'peft'))


def check_said(answer: Answer) -> str:
    """Harm if an act found a difference and no note or warning was printed."""
    lines = (answer.out + answer.err).splitlines()
    is_said = any(line.startswith(('note:', 'warning:')) for line in lines)
    for line in lines:
        if line.startswith(_DIFFERS) and not is_said:
            return line[:300]
    return ''


def _transformers() -> Any:
    """The library, without messages of its own."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _tell(what: str, here: object, there: object) -> None:
    print(f'{_DIFFERS}{what}: {here!r:.160} here, {there!r:.160} there')


# Ids ------------------------------------------------------------------------------------------


def _set_dropout(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    if parts['model']['type'] == 'BPE':
        parts['model']['dropout'] = 0.4


def _set_template(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    cls, sep = settings['cls_token'], settings['sep_token']
    tokens = {token['content']: token['id'] for token in parts['added_tokens']}
    pairs = ('C A S B S', 'C A S S B S', 'C A B S', 'A S B S', 'C A S B1 S1', 'C A S1 B1 S1')
    special = [{'id': name, 'ids': [tokens[name]], 'tokens': [name]} for name in (cls, sep)]

    def items(pattern: str) -> list[dict[str, Any]]:
        found = []
        for item in pattern.split():
            type_id = int(item[1:] or 0)
            if item[0] in 'AB':
                found.append({'Sequence': {'id': item[0], 'type_id': type_id}})
            else:
                found.append({'SpecialToken': {
                    'id': cls if item[0] == 'C' else sep, 'type_id': type_id}})
        return found

    parts['post_processor'] = {
        'type': 'TemplateProcessing', 'single': items(rng.choice(('C A S', 'A S', 'C A'))),
        'pair': items(rng.choice(pairs)), 'special_tokens': {x['id']: x for x in special}}


def _set_most_letters(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    if parts['model']['type'] == 'WordPiece':
        parts['model']['max_input_chars_per_word'] = rng.choice((5, 20, 100))


def _set_normalizer(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    parts['normalizer'] = rng.choice((
        None, {'type': 'Lowercase'}, {'type': 'NFC'}, {'type': 'NFKD'}, {'type': 'StripAccents'},
        {'type': 'Strip', 'strip_left': True, 'strip_right': True},
        {'type': 'Replace', 'pattern': {'String': 'a'}, 'content': 'b'},
        {'type': 'BertNormalizer', 'clean_text': True, 'handle_chinese_chars': True,
         'strip_accents': None, 'lowercase': True}))


def _set_limits(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    parts['truncation'] = {
        'direction': rng.choice(('Left', 'Right')), 'max_length': 7, 'strategy': 'LongestFirst',
        'stride': 0}


def _add_token(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    highest = max(token['id'] for token in parts['added_tokens'])
    vocab = parts['model']['vocab']
    parts['added_tokens'].append({
        'id': max(highest, len(vocab) - 1) + 1, 'content': 'NEW', 'single_word': False,
        'lstrip': rng.random() < 0.5, 'rstrip': rng.random() < 0.5,
        'normalized': rng.random() < 0.5, 'special': rng.random() < 0.5})


def _set_setting(rng: random.Random, parts: dict[str, Any], settings: dict[str, Any]) -> None:
    name, value = rng.choice((
        ('truncation_side', 'left'), ('padding_side', 'left'), ('add_prefix_space', True),
        ('add_prefix_space', False), ('do_lower_case', True), ('do_lower_case', False),
        ('model_input_names', ['input_ids', 'attention_mask']), ('model_max_length', 9),
        ('clean_up_tokenization_spaces', True), ('strip_accents', True),
        ('split_special_tokens', True),
        ('tokenizer_class', 'BertTokenizer'), ('tokenizer_class', 'RobertaTokenizer'),
        ('tokenizer_class', 'XLMRobertaTokenizer'), ('tokenizer_class', 'DebertaV2Tokenizer')))
    settings[name] = value


_CHANGES = (_set_dropout, _set_template, _set_most_letters, _set_normalizer, _set_limits,
            _add_token, _set_setting, _set_setting)


def _berts(folder: Path) -> None:
    """A tokenizer.json of BERT's WordPiece."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    from tests.tokenizers_of_kinds import TEXTS

    library = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(TEXTS, trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
        show_progress=False))
    library.post_processor = processors.TemplateProcessing(
        single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1',
        special_tokens=[('[CLS]', 2), ('[SEP]', 3)])
    library.save(str(folder / 'tokenizer.json'))


def _mutated(rng: random.Random, tokens: Sequence[str]) -> tuple[bytes, str]:
    """A vocab.txt of other people: (its content, what is unusual about it)."""
    tokens = list(tokens)
    how = rng.choice(('', 'order', 'case', 'repeated', 'blank', 'spaces', 'lacking', 'CRLF',
                      'open end', 'BOM', 'decomposed', 'tail'))
    place = rng.randrange(5, len(tokens))
    if how == 'order':
        rng.shuffle(tokens)
    elif how == 'case':
        tokens[place] = tokens[place].upper()
    elif how == 'repeated':
        tokens.insert(place, rng.choice(tokens))
    elif how == 'blank':
        tokens.insert(place, '')
    elif how == 'spaces':
        tokens[place] += rng.choice((' ', '\t', '\xa0'))
    elif how == 'lacking':
        del tokens[rng.randrange(len(tokens))]
    elif how == 'decomposed':
        tokens = [unicodedata.normalize('NFD', token) for token in tokens]
    elif how == 'tail':
        del tokens[place:]
    content = ('\r\n' if how == 'CRLF' else '\n').join(tokens)
    if how != 'open end':
        content += '\r\n' if how == 'CRLF' else '\n'
    return content.encode('utf-8-sig' if how == 'BOM' else 'utf-8'), how


def _word(rng: random.Random) -> str:
    """A word of any letters and signs, or one of those that texts have.

    Signs that Unicode got of late are left out: of them, Python knows more than the library does.
    """
    if rng.random() < 0.6:
        return rng.choice(_WORDS)
    first, last = rng.choice(_RANGES)
    letters = [chr(rng.randint(ord(first), ord(last))) for _ in range(rng.randint(1, 4))]
    of_old = unicodedata.ucd_3_2_0
    return ''.join(x for x in letters if of_old.category(x) != 'Cn') or 'word'


def draw_ids(rng: random.Random, folder: Path, things: Path) -> Case:
    """A folder with a tokenizer.json or a vocab.txt, which are not always the usual ones."""
    place = folder / 'tokenizer'
    place.mkdir()
    kind = rng.choice(('bert', 'vocab.txt', 'vocab.txt', *LIBRARY_KINDS))
    if kind in ('bert', 'vocab.txt'):
        _berts(place)
    else:
        write_tokenizer(kind, place)
    parts = json.loads((place / 'tokenizer.json').read_text())
    begin = '<' if any(token['content'] == '<s>' for token in parts['added_tokens']) else '['
    settings: dict[str, Any] = {
        **_NAMES[begin], 'tokenizer_class': 'PreTrainedTokenizerFast', 'model_max_length': 64}
    if kind == 'vocab.txt':
        (place / 'tokenizer.json').unlink()
        pieces = parts['model']['vocab']
        content, how = _mutated(rng, sorted(pieces, key=pieces.__getitem__))
        write(place / 'vocab.txt', content)
        settings['tokenizer_class'] = 'BertTokenizer'
        changes = [_set_setting] * rng.choice((0, 0, 1))
        done = [how]
    else:
        changes = rng.sample(_CHANGES, rng.choice((0, 1, 1, 2)))
        done = []
    for change in changes:
        change(rng, parts, settings)
        done.append(change.__name__.strip('_'))
    if kind != 'vocab.txt':
        write(place / 'tokenizer.json', parts)
    write(place / 'tokenizer_config.json', settings)
    write(place / 'config.json', {'model_type': 'bert'})
    texts = [' '.join(_word(rng) for _ in range(rng.randint(1, 9))) for _ in range(12)]
    if begin == '[':  # as in the original, special tokens in texts are text
        texts = [re.sub(r'\[MASK\]|<mask>|</s>', 'word', text) for text in texts]
    return Case(done=f"{kind} {', '.join(done)} {settings!r:.300}",
                act=lambda: _compare_ids(place, texts), check=check_said)


def _compare_ids(folder: Path, texts: Sequence[str]) -> None:
    """Compares ids and types of texts and pairs with those of transformers."""
    from bert_jax.api.tokenizer import Tokenizer
    from bert_jax.foreign.huggingface import _framing_in
    from bert_jax.foreign.tokenizer_files import read_tokenizer
    from bert_jax.runtime.files import as_path
    from bert_jax.text.kinds import load_tokenizer
    from bert_jax.weights.inference_settings import frame_of

    try:
        theirs = _transformers().AutoTokenizer.from_pretrained(str(folder))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics
        print(f'transformers refuses it: {error!r:.100}')
        return
    size = max(theirs.get_vocab().values()) + 1
    vocab_file, lowercase = read_tokenizer(as_path(folder), size)
    assert vocab_file is not None
    framing = _framing_in(as_path(folder), {'model_type': 'bert'}, vocab_file, num_types=2)
    pieces = load_tokenizer(vocab_file, lowercase)
    ours = Tokenizer(pieces, 512, frame_of(pieces.vocab, framing, 2, str(folder)))
    pairs = list(zip(texts, texts[1:], strict=False))
    for example in (*texts, *pairs):
        arguments = example if isinstance(example, tuple) else (example,)
        for length in (None, *_LENGTHS):
            options: dict[str, Any] = {}
            if length is not None:
                options = {'truncation': 'longest_first', 'max_length': length}
            try:
                there = theirs(*arguments, **options)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                print(f'transformers refuses {example!r:.60}: {error!r:.100}')
                return
            there.setdefault('token_type_ids', [0] * len(there['input_ids']))
            here = ours([example], max_length=length)
            kept = here['attention_mask'][0].astype(bool)
            for name in ('input_ids', 'token_type_ids'):
                found = here[name][0][kept].tolist()
                if found != there[name]:
                    _tell(f'{name} of {example!r:.60} at {length}', found, there[name])
                    return


# Labels ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Table:
    """A table as its own reader reads it.

    Attributes:
      path: its file.
      rows: text and label of each.
    """

    path: Path
    rows: list[tuple[str, Any]]


def _write_csv(rng: random.Random, path: Path, rows: Sequence[tuple[str, Any]]) -> _Table:
    return _write_separated(rng, path, rows, rng.choice(',,;\t|'))


def _write_tsv(rng: random.Random, path: Path, rows: Sequence[tuple[str, Any]]) -> _Table:
    return _write_separated(rng, path, rows, '\t')


def _write_separated(
    rng: random.Random, path: Path, rows: Sequence[tuple[str, Any]], separator: str
) -> _Table:
    out = io.StringIO()
    options: dict[str, Any] = {
        'quoting': rng.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC)),
        'lineterminator': rng.choice(('\n', '\r\n')), 'delimiter': separator}
    writer = csv.writer(out, **options)
    writer.writerow(['text', 'label'])
    writer.writerows(rows)
    path.write_bytes(out.getvalue().encode(rng.choice(('utf-8', 'utf-8-sig'))))
    with path.open(encoding='utf-8-sig', newline='') as file:
        reader = csv.DictReader(file, delimiter=separator)
        read = [(row['text'], row['label']) for row in reader]
    return _Table(path, read)


def _write_jsonl(rng: random.Random, path: Path, rows: Sequence[tuple[str, Any]]) -> _Table:
    is_ascii = rng.random() < 0.5
    lines = [json.dumps({'text': text, 'label': label}, ensure_ascii=is_ascii)
             for text, label in rows]
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    read = []
    for line in path.read_text(encoding='utf-8').split('\n')[:-1]:
        values = json.loads(line)
        read.append((values['text'], values['label']))
    return _Table(path, read)


def _write_json(rng: random.Random, path: Path, rows: Sequence[tuple[str, Any]]) -> _Table:
    records = [{'text': text, 'label': label} for text, label in rows]
    path.write_text(json.dumps(records, indent=rng.choice((None, 2))), encoding='utf-8')
    read = json.loads(path.read_text(encoding='utf-8'))
    return _Table(path, [(row['text'], row['label']) for row in read])


def _write_parquet(rng: random.Random, path: Path, rows: Sequence[tuple[str, Any]]) -> _Table:
    import pyarrow
    from pyarrow import parquet

    labels = pyarrow.array([label for _, label in rows])
    if isinstance(rows[0][1], int) and rng.random() < 0.5:  # of bool, too
        labels = labels.cast(rng.choice(('int8', 'uint16', 'int64')), safe=False)
    if rng.random() < 0.5:
        labels = labels.dictionary_encode()
    texts = pyarrow.array([text for text, _ in rows], rng.choice(('string', 'large_string')))
    table = pyarrow.table({'text': texts, 'label': labels})
    parquet.write_table(table, path, row_group_size=rng.choice((2, 1000)))
    read = parquet.read_table(path).to_pylist()
    return _Table(path, [(row['text'], row['label']) for row in read])


_WRITERS: tuple[tuple[str, Callable[..., _Table]], ...] = (
    ('csv', _write_csv), ('tsv', _write_tsv), ('jsonl', _write_jsonl), ('json', _write_json),
    ('parquet', _write_parquet))
_CELLS = ('a text', 'a, b', 'say "so"', "don't", 'two\nlines', 'tab\there', '你好', 'naïve', '=1+1',
          '#', '\\', 'end\\', 'NULL', 'NaN', '  spaces  ', '\u2028', '\x85', 'a;b', '1.50',
          '"a" and "b"', '"quoted"', '"', '')
_LABELS: tuple[tuple[Any, ...], ...] = (
    ('yes', 'no'), (0, 1), (True, False), ('a b', 'c,d'), ('0', '1'), ('"x"', 'y'), (3, -7),
    ('Ja', 'ja'), ('é', 'e\u0301'))


def draw_labels(rng: random.Random, folder: Path, things: Path) -> Case:
    """A whole table that another program has written."""
    labels = rng.choice(_LABELS)
    rows = [(rng.choice(_CELLS), rng.choice(labels)) for _ in range(rng.randint(2, 30))]
    form, writer = rng.choice(_WRITERS)
    table = writer(rng, folder / f'table.{form}', rows)
    if form != 'parquet' and rng.random() < 0.3:
        pack, ending = rng.choice(((gzip.compress, 'gz'), (bz2.compress, 'bz2')))
        packed = folder / f'table.{form}.{ending}'
        packed.write_bytes(pack(table.path.read_bytes()))
        table = _Table(packed, table.rows)
    return Case(done=f'{form} {labels!r}', act=lambda: _compare_rows(table), check=check_said)


def _compare_rows(table: _Table) -> None:
    """Compares texts and labels with those of the table's own reader."""
    found = read_table(str(table.path), ['text', 'label'], tuple, max_malformed=0).values
    if len(found) != len(table.rows):
        _tell('number of rows', len(found), len(table.rows))
        return
    for here, there in zip(found, table.rows, strict=True):
        text, label = there
        spellings = {str(label), json.dumps(label, ensure_ascii=False)}
        if here[0] != text or str(here[1]) not in spellings:
            _tell('row', here, there)
            return


# Weights --------------------------------------------------------------------------------------


def _in_another_dtype(rng: random.Random, tensors: dict[str, Any], config: dict[str, Any]) -> None:
    import torch

    dtype = rng.choice((torch.float16, torch.bfloat16, torch.float64))
    for name in tensors:
        tensors[name] = tensors[name].to(dtype)


def _named_as_once(rng: random.Random, tensors: dict[str, Any], config: dict[str, Any]) -> None:
    for name in list(tensors):
        if 'LayerNorm.weight' in name:
            tensors[name.replace('weight', 'gamma')] = tensors.pop(name)
        elif 'LayerNorm.bias' in name:
            tensors[name.replace('bias', 'beta')] = tensors.pop(name)


def _with_a_neighbour(rng: random.Random, tensors: dict[str, Any], config: dict[str, Any]) -> None:
    name = rng.choice(sorted(tensors))
    tensors[f'{name}_ema'] = tensors[name] * 2


def _with_another_field(
    rng: random.Random, tensors: dict[str, Any], config: dict[str, Any]
) -> None:
    name, value = rng.choice((
        ('problem_type', 'multi_label_classification'), ('problem_type', 'regression'),
        ('classifier_dropout', 0.5), ('hidden_dropout_prob', 0.9), ('torch_dtype', 'bfloat16'),
        ('dtype', 'float16'), ('summary_type', 'mean'), ('is_decoder', True),
        ('position_embedding_type', 'relative_key'), ('tie_word_embeddings', False),
        ('layer_norm_eps', 1e-3), ('norm_eps', 1e-3), ('hidden_act', 'relu'),
        ('hidden_activation', 'relu'), ('chunk_size_feed_forward', 4), ('use_cache', False),
        ('output_hidden_states', True), ('return_dict', False), ('pruned_heads', {'0': [0]}),
        ('classifier_pooling', 'mean'), ('local_attention', 4), ('embedding_size', 99)))
    config[name] = value


_MODEL_CHANGES = (_in_another_dtype, _named_as_once, _with_a_neighbour, _with_another_field,
                  _with_another_field)


def draw_weights(rng: random.Random, folder: Path, things: Path) -> Case:
    """A model of transformers, and up to two things about it that are not the usual ones."""
    from safetensors.torch import load_file, save_file

    from tests.foreign.family_models import every_model, random_model

    _transformers()
    variant, kind = rng.choice(every_model())
    model = random_model(variant, kind, seed=rng.randrange(1000))
    place = folder / 'model'
    model.save_pretrained(place)
    tensors = load_file(place / 'model.safetensors')
    config = json.loads((place / 'config.json').read_text())
    changes = rng.sample(_MODEL_CHANGES, rng.choice((0, 1, 1, 2)))
    for change in changes:
        change(rng, tensors, config)
    save_file(tensors, place / 'model.safetensors', {'format': 'pt'})
    write(place / 'config.json', config)
    done = ', '.join(change.__name__.strip('_') for change in changes)
    def load() -> Any:
        import torch

        return type(model).from_pretrained(str(place), dtype=torch.float32)

    return Case(done=f'{variant} {kind}: {done}', act=lambda: _compare_outputs(place, load),
                check=check_said)


def _compare_outputs(folder: Path, load: Callable[[], Any]) -> None:
    """Compares the outputs of a model with those of its class in transformers.

    Args:
      folder: of the model.
      load: loads it with transformers.
    """
    import torch

    import bert_jax
    from tests.foreign.family_models import random_inputs

    ours = bert_jax.from_pretrained(str(folder))
    try:
        theirs = load().eval()
        inputs = random_inputs(theirs, 16)
        if 'token_type_ids' not in type(theirs).forward.__code__.co_varnames:
            del inputs['token_type_ids']
        with torch.no_grad():
            tensors = {name: torch.tensor(x) for name, x in inputs.items()}
            there = theirs(**tensors, return_dict=True)
    except Exception as error:
        print(f'transformers refuses it: {error!r:.100}')
        return
    here = jax.jit(ours.module.apply)({'params': ours.params}, **inputs)
    for name, x in there.items():
        if name in ('loss', 'hidden_states', 'attentions') or getattr(here, name, None) is None:
            continue
        found = np.asarray(getattr(here, name), np.float32)
        expected = x.numpy()
        if found.shape != expected.shape:
            _tell(f'shape of {name}', found.shape, expected.shape)
            return
        mask = inputs['attention_mask'].astype(bool)
        if expected.shape[:2] == mask.shape:
            found, expected = found[mask], expected[mask]
        worst = float(np.abs(found - expected).max())
        if worst > 1e-3 * max(1.0, float(np.abs(expected).max())):
            _tell(f'{name}, worst difference', worst, 0.0)
            return


# Adapters -------------------------------------------------------------------------------------

_TYPE_OF_CLASS = {
    'ForSequenceClassification': 'SEQ_CLS', 'ForTokenClassification': 'TOKEN_CLS',
    'ForQuestionAnswering': 'QUESTION_ANS', 'Model': 'FEATURE_EXTRACTION'}


def _adapter_fields(rng: random.Random, kind: str, ends: Sequence[str]) -> dict[str, Any]:
    """The fields of an adapter, with up to two that are not the usual ones.

    Args:
      rng: what they are drawn from.
      kind: of the model's class.
      ends: of the names of its matrices.
    """
    end = rng.choice(ends)
    targets = rng.choice((
        rng.sample(ends, rng.randint(1, min(3, len(ends)))), [end], 'all-linear',
        f'.*{re.escape(end)}', r'.*[.]\d[.].*'))
    fields = {
        'r': rng.choice((1, 3, 8)), 'lora_alpha': rng.choice((1, 6)), 'target_modules': targets,
        'task_type': rng.choice((_TYPE_OF_CLASS.get(kind), None))}
    unusual: tuple[dict[str, Any], ...] = (
        {'use_rslora': True}, {'use_dora': True}, {'use_dora': True, 'use_rslora': True},
        {'bias': 'all'}, {'bias': 'lora_only'}, {'lora_bias': True}, {'lora_dropout': 0.5},
        {'modules_to_save': ['classifier']}, {'modules_to_save': ['pooler']},
        {'modules_to_save': ['embeddings']}, {'layers_to_transform': [rng.randrange(4)]},
        {'layers_to_transform': [0, 2]}, {'exclude_modules': [end]}, {'rank_pattern': {end: 2}},
        {'alpha_pattern': {end: 5}}, {'init_lora_weights': 'gaussian'},
        {'init_lora_weights': 'olora'}, {'trainable_token_indices': [5, 6]})
    for change in rng.sample(unusual, rng.choice((0, 1, 1, 2))):
        fields |= change
    return fields


def _spoil_adapter(rng: random.Random, folder: Path) -> str:
    """Saves an adapter as others do, or not at all otherwise; says how."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / 'adapter_model.safetensors'
    config = json.loads((folder / 'adapter_config.json').read_text())
    how = rng.choice(('', '', 'bfloat16', 'float16', 'pickled', 'fan_in_fan_out', 'of rank 2'))
    if how in ('bfloat16', 'float16'):
        tensors = {name: x.to(getattr(torch, how)) for name, x in load_file(file).items()}
        save_file(tensors, file, {'format': 'pt'})
    elif how == 'pickled':
        torch.save(load_file(file), folder / 'adapter_model.bin')
        file.unlink()
    elif how == 'fan_in_fan_out':
        write(folder / 'adapter_config.json', config | {'fan_in_fan_out': True})
    elif how:
        write(folder / 'adapter_config.json', config | {'r': 2})
    return how


def draw_adapter(rng: random.Random, folder: Path, things: Path) -> Case:
    """An adapter of peft of a model of transformers, saved as people have them."""
    import peft
    import torch

    from tests.foreign.family_models import every_model, random_model

    _transformers()
    torch.set_num_threads(1)  # products in the threads of a process that forks would never end
    place = folder / 'adapter'
    fields: dict[str, Any] = {}
    while not place.exists():
        variant, kind = rng.choice(every_model())
        seed = rng.randrange(1000)
        base = random_model(variant, kind, seed=seed)
        base.save_pretrained(folder / 'base')
        base.name_or_path = str(folder / 'base')
        names = [name for name, x in base.named_modules() if isinstance(x, torch.nn.Linear)]
        ends = sorted({'.'.join(name.split('.')[-2:]) for name in names if '.' in name})
        fields = _adapter_fields(rng, kind, ends)
        try:
            model = peft.get_peft_model(base, peft.LoraConfig(**fields))
        except Exception:  # of many types: peft has no such adapter of this model
            shutil.rmtree(folder / 'base')
            continue
        with torch.no_grad():
            for name, x in model.named_parameters():
                if 'lora_magnitude' in name:
                    x.mul_(0.5 + torch.rand_like(x))
                elif x.requires_grad:
                    x.normal_(std=0.2)
        model.save_pretrained(place)
    how = _spoil_adapter(rng, place)

    def load() -> Any:
        base = random_model(variant, kind, seed=seed)
        return peft.PeftModel.from_pretrained(base, str(place)).get_base_model()

    return Case(done=f'{variant} {kind}: {fields} {how}',
                act=lambda: _compare_outputs(place, load), check=check_said)
