"""A tokenizer with Hugging Face's switches gives the ids that transformers gives."""

import itertools
import unicodedata

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.text import load_tokenizer, read_switches, switches_of, write_switches
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, write_vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer

pytestmark = pytest.mark.slow

NEVER_SPLIT = ('naïve', 'Über-all', '[X]', '你', 'U.S.')
# Four switches: 16 combinations, of an uncased and of a cased tokenizer.
COMBINATIONS = [
    (lowercase, Switches(strip, chinese, basic, never))
    for lowercase in (True, False)
    for strip, chinese, basic, never in itertools.product(
        (not lowercase, None), (True, False), (True, False), ((), NEVER_SPLIT))]


@pytest.fixture(scope='module')
def lines(tokenized):
    """Recorded hard lines, each between words of NEVER_SPLIT."""
    # transformers, unlike the original and this package, composes characters first (NFC), makes
    # words longer than 100 characters [UNK] (not 200), finds special tokens in the text, and drops
    # private and unassigned characters. So lines are composed; those with the rest are left out.
    return [
        line for recorded, word in zip(tokenized, itertools.cycle(NEVER_SPLIT))
        for text in [unicodedata.normalize('NFC', recorded['text'])]
        for line in [' '.join([word, *text.split('\n'), word])]
        if unicodedata.normalize('NFC', _cleaned(line)) == _cleaned(line)
        and all(len(word) <= 30 for word in line.split())
        and not any(token in line for token in SPECIAL_TOKENS)
        and not any(unicodedata.category(char) in ('Co', 'Cn', 'Cs') for char in line)]


def _cleaned(line):
    return ''.join(c for c in line if unicodedata.category(c) not in ('Cc', 'Cf') or c in '\t\r')


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
    ours = WordPieceTokenizer(Vocab.from_file(vocab_file), lowercase, switches)
    assert len(lines) > 1000
    for line in lines[number % 3::3]:  # all of them would take a minute
        assert ours.encode(line) == theirs.encode(line, add_special_tokens=False), line


@pytest.mark.parametrize(('lowercase', 'switches'), COMBINATIONS[::5] + COMBINATIONS[1::7])
def test_the_graph_gives_the_ids_of_the_reference(lowercase, switches, lines, vocab_file):
    pytest.importorskip('tensorflow_text')
    from bert_jax.data.tokenize import make_encode

    tokenizer = WordPieceTokenizer(Vocab.from_file(vocab_file), lowercase, switches)
    ids, counts = make_encode(tokenizer)(lines)
    wanted = [tokenizer.encode(line) for line in lines]
    np.testing.assert_array_equal(counts, [len(x) for x in wanted])
    np.testing.assert_array_equal(ids, [i for x in wanted for i in x])


def test_each_choice_of_switches_has_its_fingerprint_and_the_original_keeps_the_plain_one(tmp_path):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, 'a'])
    plain, found = load_tokenizer(tmp_path / 'vocab.txt', True), {}
    for switches in {switches for _, switches in COMBINATIONS} | {ORIGINAL}:
        write_switches(tmp_path, switches)
        tokenizer = load_tokenizer(tmp_path / 'vocab.txt', True)
        assert tokenizer.switches == switches == read_switches(tmp_path / 'vocab.txt')
        found[switches] = tokenizer.fingerprint
    assert len(set(found.values())) == len(found) and found[ORIGINAL] == plain.fingerprint


@pytest.mark.parametrize('fields', [
    {'strip_accents': 'yes'}, {'tokenize_chinese_chars': None}, {'never_split': 'word'},
    {'never_split': [1]}, {'do_basic_tokenize': 1},
])
def test_a_switch_of_another_type_is_refused(fields):
    with pytest.raises(InputError, match=f'^x: {next(iter(fields))}='):
        switches_of(fields, 'x')
