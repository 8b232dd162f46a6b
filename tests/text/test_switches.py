"""A tokenizer with Hugging Face's switches gives the ids that transformers gives."""

import itertools
import unicodedata

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.switches import read_switches, switches_of, write_switches
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import read_vocab, write_vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer

NEVER_SPLIT = ('naïve', 'Über-all', '[X]', '你', 'U.S.')


def combinations(lowercase):
    """All combinations of four switches that differ for a tokenizer."""
    values = itertools.product(
        (not lowercase, None), (True, False), (True, False), ((), NEVER_SPLIT))
    return [
        Switches(strip_accents=strip, tokenize_chinese_chars=chinese, do_basic_tokenize=basic,
                 never_split=never_split)
        for strip, chinese, basic, never_split in values]


COMBINATIONS = [
    *((True, switches) for switches in combinations(lowercase=True)),
    *((False, switches) for switches in combinations(lowercase=False)),
]


@pytest.fixture(scope='module')
def lines(tokenized):
    """Recorded hard lines, composed (NFC), each between words of NEVER_SPLIT."""
    found = []
    for recorded, word in zip(tokenized, itertools.cycle(NEVER_SPLIT)):
        text = unicodedata.normalize('NFC', recorded['text'])
        line = ' '.join([word, *text.split('\n'), word])
        if _is_read_alike(line):
            found.append(line)
    return found


def _is_read_alike(line):
    """Whether a line has nothing that transformers reads in another way than the original.

    It composes characters first, makes words longer than 100 characters [UNK] (not 200), finds
    special tokens in the text, and drops private and unassigned characters.
    """
    cleaned = _cleaned(line)
    is_composed = unicodedata.normalize('NFC', cleaned) == cleaned
    has_short_words = all(len(word) <= 30 for word in line.split())
    has_special = any(token in line for token in SPECIAL_TOKENS)
    has_unassigned = any(unicodedata.category(char) in ('Co', 'Cn', 'Cs') for char in line)
    return is_composed and has_short_words and not has_special and not has_unassigned


def _cleaned(line):
    """The line without control and format characters."""
    return ''.join(
        char for char in line if unicodedata.category(char) not in ('Cc', 'Cf') or char in '\t\r')


@pytest.fixture(scope='module')
def vocab_file(shared_data):
    return shared_data / 'vocab' / 'bert-base-multilingual-cased-vocab.txt'


@pytest.mark.extras
@pytest.mark.parametrize('number', range(len(COMBINATIONS)))
def test_ids_are_those_of_transformers(number, lines, vocab_file):
    lowercase, switches = COMBINATIONS[number]
    legacy = pytest.importorskip('transformers.models.bert.tokenization_bert_legacy')
    theirs = legacy.BertTokenizerLegacy(
        str(vocab_file), do_lower_case=lowercase, strip_accents=switches.strip_accents,
        tokenize_chinese_chars=switches.tokenize_chinese_chars,
        do_basic_tokenize=switches.do_basic_tokenize, never_split=list(switches.never_split))
    ours = WordPieceTokenizer(read_vocab(vocab_file), lowercase, switches)
    assert len(lines) > 1000
    for line in lines[number % 3::3]:  # all of them would take a minute
        assert ours.encode(line) == theirs.encode(line, add_special_tokens=False), line


@pytest.fixture(scope='module')
def small_vocab(vocab_file):
    """The vocabulary's short pieces, which a graph takes up quickly, and the words NEVER_SPLIT."""
    tokens = read_vocab(vocab_file).tokens
    short = [token for token in tokens if len(token.removeprefix('##')) < 3]
    return Vocab.from_tokens(list(dict.fromkeys([*SPECIAL_TOKENS, *short, *NEVER_SPLIT])))


# Nearly each pair of choices is in one of them; the last two are left to TF-Text where it is sure.
@pytest.mark.parametrize(
    ('lowercase', 'switches'), [*COMBINATIONS[2::5], COMBINATIONS[0], COMBINATIONS[20]])
def test_the_graph_gives_the_ids_of_the_reference(lowercase, switches, lines, small_vocab):
    pytest.importorskip('tensorflow_text')
    from bert_jax.corpus.tokenize_tensorflow import make_encode

    tokenizer = WordPieceTokenizer(small_vocab, lowercase, switches)
    ids, counts = make_encode(tokenizer)(lines)
    wanted = [tokenizer.encode(line) for line in lines]
    np.testing.assert_array_equal(counts, [len(ids_of_line) for ids_of_line in wanted])
    np.testing.assert_array_equal(ids, np.concatenate(wanted))


def test_each_choice_of_switches_has_its_fingerprint_and_the_original_keeps_the_plain_one(tmp_path):
    vocab_file = tmp_path / 'vocab.txt'
    write_vocab(vocab_file, [*SPECIAL_TOKENS, 'a'])
    plain = load_tokenizer(vocab_file, True)
    choices = {ORIGINAL}
    choices.update(switches for _, switches in COMBINATIONS)
    fingerprints = {}
    for switches in choices:
        write_switches(tmp_path, switches)
        tokenizer = load_tokenizer(vocab_file, True)
        assert tokenizer.switches == switches == read_switches(vocab_file)
        fingerprints[switches] = tokenizer.fingerprint
    assert len(set(fingerprints.values())) == len(choices)
    assert fingerprints[ORIGINAL] == plain.fingerprint


@pytest.mark.parametrize('name, value', [
    ('strip_accents', 'yes'),
    ('tokenize_chinese_chars', None),
    ('never_split', 'word'),
    ('never_split', [1]),
    ('do_basic_tokenize', 1),
])
def test_a_switch_of_another_type_is_refused(name, value):
    with pytest.raises(InputError, match=f'^x: {name}='):
        switches_of({name: value}, 'x')
