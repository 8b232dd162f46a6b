"""Byte-level BPE and Unigram vocabularies that are trained here, and words added to them."""

import json
import random

import pytest
import tokenizers

from bert_jax.corpus.extending import extend
from bert_jax.corpus.trainers import TRAINERS, Wanted, find_trainer, name_in_run, size_to_train
from bert_jax.text.frames import berts_frame
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS
from tests import tokenizers_of_kinds as kinds
from tests.conftest import run_python
from tests.refusals import refused

TRAINED = ('bpe', 'unigram')
TRAIN = """
import sys
from bert_jax.corpus.trainers import Wanted, find_trainer
from tests.tokenizers_of_kinds import TEXTS
sys.stdout.write(find_trainer(sys.argv[1]).train(TEXTS, Wanted(sys.argv[1], 500, True)))
"""


def train(tokenizer, vocab_size=400, lowercase=False, strip_accents=None, texts=kinds.TEXTS):
    wanted = Wanted(tokenizer, vocab_size, lowercase, strip_accents)
    return find_trainer(tokenizer).train(iter(texts), wanted)


@pytest.mark.parametrize('name', TRAINED)
def test_a_trained_tokenizer_is_berts_in_its_frame(name):
    content = train(name)
    ours = HuggingFaceTokenizer(content)
    library = tokenizers.Tokenizer.from_str(content)
    assert ours.vocab.tokens[:5] == SPECIAL_TOKENS and ours.algorithm == name
    assert ours.vocab.frame.pair == berts_frame(2, 3).pair and ours.vocab.unk_id == 1
    if name == 'bpe':
        assert len(ours.vocab) == 400
        assert ours.vocab.unk_id not in ours.encode('\U0001F680 \u3042\x00 any text')
    else:
        assert 100 < len(ours.vocab) <= 400  # the text holds no more
    pair = library.encode('the cat', 'a dog')
    assert pair.tokens.count('[SEP]') == 2 and pair.type_ids[-1] == 1
    # A word is the same wherever it stands.
    assert ours.encode('walked talked')[:len(ours.encode('walked'))] == ours.encode('walked')
    first, second = ours.encode_words(['walked', 'walked'])
    assert first == second and not ours.vocab.is_continuation[first[0]]


@pytest.mark.parametrize('name', TRAINERS)
def test_special_tokens_in_a_text_are_text(name, tmp_path):
    """For every kind that is trained here, words that are added among them."""
    path = tmp_path / f'trained{find_trainer(name).ending}'
    texts = ['[MASK] [CLS] <s> PAD] MASK the cat [PAD][SEP]', *kinds.TEXTS]
    wanted = 'kmer:2' if name == 'kmer' else name
    path.write_text(train(wanted, texts=texts))
    contents = [path.read_text()]
    if name in TRAINED:
        (tmp_path / 'words.txt').write_text('zebrafish\n')
        contents.append(extend(path, tmp_path / 'words.txt', lowercase=False).content)
    for content in contents:
        path.write_text(content)
        ours = load_tokenizer(path, lowercase=False)
        vocab = ours.vocab
        special = {vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id}
        for token in SPECIAL_TOKENS:
            for text in (token, f'the {token} cat', f'a{token}b', f'[{token}]', f'{token}{token}'):
                assert special.isdisjoint(ours.encode(text)), (text, ours.encode(text))
                assert special.isdisjoint(ours.encode_with_places(text).ids)
            assert not vocab.is_continuation[vocab.index[token]]
            assert ours.shown(vocab.index[token]) == token


@pytest.mark.slow
@pytest.mark.parametrize('name', TRAINED)
def test_the_file_depends_on_the_text_only(name):
    """Not on the process, its threads, or the order of the text."""
    files = set()
    for threads in ('1', '3'):
        ended = run_python('-c', TRAIN, name, RAYON_NUM_THREADS=threads)
        assert ended.returncode == 0, ended.stderr
        files.add(ended.stdout)
    assert len(files) == 1
    shuffled = list(kinds.TEXTS)
    random.Random(0).shuffle(shuffled)
    assert train(name, 500, lowercase=True, texts=shuffled) in files


@pytest.mark.parametrize('name', TRAINED)
def test_case_and_accents(name):
    plain = HuggingFaceTokenizer(train(name))
    lower = HuggingFaceTokenizer(train(name, lowercase=True))
    stripped = HuggingFaceTokenizer(train(name, lowercase=True, strip_accents=True))
    assert plain.encode('The café') != plain.encode('the cafe')
    assert lower.encode('THE Café') == lower.encode('the cafe\u0301') != lower.encode('the cafe')
    assert stripped.encode('THE Café') == stripped.encode('the cafe')


def test_what_cannot_be_trained():
    with refused("config.data.tokenizer='bep' is no kind", "did you mean 'bpe'?"):
        find_trainer('bep')
    with refused("'bpe:3' is no kind"):
        find_trainer('bpe:3')
    with refused('vocab_size=261', 'take more than 261'):
        train('bpe', 261)
    with refused('vocab_size=30 is too small for the characters'):
        train('unigram', 30)
    with refused('the training text holds no words'):
        train('unigram', texts=['', ' \n'])
    with refused("config.data.tokenizer='kmer' has no k: write kmer:6"):
        train('kmer')


def test_sizes_before_training(tmp_path):
    """Kinds that need no text have the size of their file, and the file is one of their kind."""
    assert size_to_train(Wanted('bpe', 777, False)) == 777
    for name in ('letters', 'letters:ACGT', 'kmer:3'):
        path = tmp_path / f'x{find_trainer(name).ending}'
        path.write_text(train(name))
        tokenizer = load_tokenizer(path, lowercase=True)
        assert len(tokenizer.vocab) == size_to_train(Wanted(name, 777, False))
        assert name.startswith(tokenizer.algorithm)
        assert name_in_run('', name) == f'vocab{path.suffix}'
    assert name_in_run('', 'unigram') == 'tokenizer.json' == name_in_run('x.json', 'wordpiece')
    assert name_in_run('', 'wordpiece') == 'vocab.txt' == name_in_run('other', 'wordpiece')
    assert set(TRAINERS) == {'wordpiece', 'bpe', 'unigram', 'letters', 'kmer'}


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_words_are_added_behind_the_others(kind, tmp_path):
    library = kinds.KINDS[kind]()
    path = kinds.write(tmp_path, library)
    before = load_tokenizer(path, lowercase=True)
    words = tmp_path / 'words.txt'
    words.write_text('zebrafish\nthe\n\nzebrafish\n  covid19 \n')
    extended = extend(path, words, lowercase=True)
    size = len(before.vocab)
    assert extended.num_tokens == size + 2 + (len(before.encode(' the')) > 1)
    assert any('named twice' in note for note in extended.notes)
    path.write_text(extended.content)
    after = load_tokenizer(path, lowercase=True)
    assert after.vocab.tokens[:size] == before.vocab.tokens
    assert len(after.vocab) == extended.num_tokens
    new = after.vocab.index['zebrafish']
    text = 'walked zebrafish, talked zebrafishes'
    ids, places = after.encode_with_places(text)
    assert ids.count(new) == 1 and text[slice(*places[ids.index(new)])] == 'zebrafish'
    assert after.encode_words(['walked', 'zebrafish'])[1] == [new]
    assert not after.vocab.is_continuation[new] and after.shown(new) == 'zebrafish'
    assert after.encode('walked') == before.encode('walked')
    library = tokenizers.Tokenizer.from_str(extended.content)
    assert library.encode(text, add_special_tokens=False).ids == ids


def test_words_that_cannot_be_added(tmp_path):
    path = kinds.write(tmp_path, kinds.roberta())
    (tmp_path / 'words.txt').write_text('fine\ntwo words\n')
    with refused("line 2 is 'two words': write one word a line"):
        extend(path, tmp_path / 'words.txt', lowercase=True)
    letters = tmp_path / 'x.letters'
    letters.write_text(train('letters'))
    with refused('words cannot be added to', 'of the kind letters'):
        extend(letters, tmp_path / 'words.txt', lowercase=True)


def test_the_trained_files_are_plain_json():
    assert json.loads(train('unigram'))['model']['unk_id'] == 1
