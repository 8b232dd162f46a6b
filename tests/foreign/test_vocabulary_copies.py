"""Folders whose files hold two vocabularies, against transformers' reading of them."""

import json

import pytest
import sentencepiece

from bert_jax.foreign.tokenizer_files import read_tokenizer
from bert_jax.runtime.files import as_path
from bert_jax.text.kinds import load_tokenizer
from tests import tokenizers_of_kinds as kinds

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
WORDS = ['the', 'cat', 'dog', 'sat', '##s', 'a', 'b']
TEXT = 'The cats sat, a dog the b'


def berts(tokens):
    """A tokenizer.json of BERT's with these tokens."""
    added = [
        {'id': i, 'content': token, 'single_word': False, 'lstrip': False, 'rstrip': False,
         'normalized': False, 'special': True} for i, token in enumerate(SPECIAL)]
    return {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added,
        'normalizer': {'type': 'BertNormalizer', 'clean_text': True, 'handle_chinese_chars': True,
                       'strip_accents': None, 'lowercase': True},
        'pre_tokenizer': {'type': 'BertPreTokenizer'}, 'post_processor': None, 'decoder': None,
        'model': {'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##',
                  'max_input_chars_per_word': 100,
                  'vocab': {token: i for i, token in enumerate(tokens)}}}


def put(folder, model_type, **files):
    """Writes files, named as their keywords with dots for two underscores."""
    folder.mkdir()
    for name, content in {'config__json': {'model_type': model_type}, **files}.items():
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name.replace('__', '.')).write_bytes(data)
    return as_path(folder)


def lines(tokens):
    return ''.join(f'{token}\n' for token in tokens)


def ids_here(folder, text=TEXT):
    path, lowercase = read_tokenizer(folder, 1000)
    return load_tokenizer(path, lowercase).encode(text)


def ids_there(folder, text=TEXT):
    transformers = pytest.importorskip('transformers')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(text, add_special_tokens=False)['input_ids']


OTHER_ORDER = [*SPECIAL, *WORDS[::-1]]
DIFFERENT = {
    'another order': (OTHER_ORDER, '6 tokens have other ids, such as'),
    'more lines': ([*SPECIAL, *WORDS[:-2]], "2 tokens have other ids, such as 'a', 10 and none"),
    'fewer lines': ([*SPECIAL, *WORDS, 'dogs'], "1 tokens have other ids, such as 'dogs', none"),
}


@pytest.mark.extras
@pytest.mark.parametrize('name', DIFFERENT)
def test_a_tokenizer_json_counts_where_vocab_txt_differs(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    tokens, said = DIFFERENT[name]
    folder = put(tmp_path / 'folder', 'bert', vocab__txt=lines([*SPECIAL, *WORDS]),
                 tokenizer__json=berts(tokens))
    assert ids_here(folder) == ids_there(folder)
    err = capsys.readouterr().err
    assert 'vocab.txt and tokenizer.json differ' in err and said in err
    assert 'tokenizer.json counts' in err


SAME = {
    'the same': lines([*SPECIAL, *WORDS]),
    'placeholders': lines([*SPECIAL, *WORDS, '[unused row 12]', '[unused1]']),
    'line ends': lines([*SPECIAL, *WORDS]).replace('\n', '\r\n'),
    'a repeated line': lines([*SPECIAL, *WORDS[:-1], 'the', 'b']),
}


@pytest.mark.parametrize('name', SAME)
def test_a_vocab_txt_that_says_the_same_is_read(name, tmp_path, capsys):
    tokens = SAME[name].splitlines()
    index = {token: i for i, token in enumerate(tokens) if 'unused' not in token}
    parts = berts([])
    parts['model']['vocab'] = index
    folder = put(tmp_path / 'folder', 'bert', vocab__txt=SAME[name], tokenizer__json=parts)
    path, _ = read_tokenizer(folder, len(tokens))
    assert path == folder / 'vocab.txt'
    assert 'differ' not in capsys.readouterr().err


def test_byte_level_files_that_differ_are_said(tmp_path, capsys):
    library = kinds.roberta()
    parts = json.loads(library.to_str())
    pieces = parts['model']['vocab'] | {'<mask>': library.token_to_id('<mask>')}
    merges = [' '.join(merge) for merge in parts['model']['merges']]
    text = '#version: 0.2\n' + lines(merges)
    expected = library.encode(TEXT, add_special_tokens=False).ids
    for name, ends in (('same', text), ('Windows', text.replace('\n', '\r\n'))):
        folder = put(tmp_path / name, 'roberta', vocab__json=pieces, merges__txt=ends,
                     tokenizer__json=parts)
        assert ids_here(folder) == expected
        assert 'differ' not in capsys.readouterr().err
    other = dict(pieces, a=pieces['t'], t=pieces['a'])
    folder = put(tmp_path / 'pieces', 'roberta', vocab__json=other, merges__txt=text,
                 tokenizer__json=parts)
    assert ids_here(folder) == expected
    assert 'vocab.json and tokenizer.json differ (2 tokens' in capsys.readouterr().err
    folder = put(tmp_path / 'merges', 'roberta', vocab__json=pieces,
                 merges__txt=text.replace(merges[3], merges[4], 1), tokenizer__json=parts)
    assert ids_here(folder) == expected
    assert f'merges.txt and tokenizer.json differ (merge 4 is {merges[4]!r}' in (
        capsys.readouterr().err)


def test_a_sentencepiece_model_that_differs_is_said(tmp_path, capsys):
    library = kinds.xlmr()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(kinds.TEXTS), model_prefix=str(tmp_path / 'spm'), vocab_size=150,
        hard_vocab_limit=False, minloglevel=2)
    folder = put(tmp_path / 'folder', 'xlm-roberta', tokenizer__json=json.loads(library.to_str()),
                 spm__model=(tmp_path / 'spm.model').read_bytes())
    assert ids_here(folder) == library.encode(TEXT, add_special_tokens=False).ids
    assert 'spm.model and tokenizer.json differ' in capsys.readouterr().err


@pytest.mark.extras
def test_transformers_reads_the_tokenizer_json_too(tmp_path):
    library = kinds.roberta()
    parts = json.loads(library.to_str())
    pieces = parts['model']['vocab'] | {'<mask>': library.token_to_id('<mask>')}
    other = dict(pieces, a=pieces['t'], t=pieces['a'])
    folder = put(tmp_path / 'folder', 'roberta', vocab__json=other, merges__txt='#version: 0.2\n',
                 tokenizer__json=parts)
    assert ids_here(folder) == ids_there(folder)
