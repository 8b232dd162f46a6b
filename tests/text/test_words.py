"""The words of running text, of every kind of tokenizer."""

import pytest
from tokenizers import Tokenizer, models, normalizers

from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.words import WordSplitter
from tests.tokenizer_files import ALL_KINDS, KINDS, tokenizer_of

# Texts whose words are the same by all kinds for languages, with the words.
TEXTS = {
    'The cat (sat) on  the mat.': ['The', 'cat', '(', 'sat', ')', 'on', 'the', 'mat', '.'],
    ' «walked», naïve ': ['«', 'walked', '»', ',', 'naïve'],
    'Москва, да.': ['Москва', ',', 'да', '.'],
    '서울, 123': ['서울', ',', '123'],
    '': [],
    '  ': [],
}


# The last has other rules for words.
@pytest.mark.parametrize('kind', [kind for kind in KINDS if kind != 'accented_wordpiece'])
def test_words_are_apart_from_punctuation(kind, tmp_path):
    tokenizer = tokenizer_of(kind, tmp_path)
    splitter = WordSplitter(tokenizer)
    for text, words in TEXTS.items():
        if kind == 'sentencepiece' and tokenizer.vocab.unk_id in tokenizer.encode(text):
            continue  # [UNK] goes up to the end of the word
        found = splitter.words(text)
        assert [text[word.begin:word.end] for word in found] == words
        left = iter(tokenizer.encode(text))  # of which white space is left out
        assert all(piece in left for word in found for piece in word.ids)


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_a_sentence_without_spaces_is_no_word(kind, tmp_path):
    """Each word of ideographs is at most a piece; kana of WordPiece are as its own rules say."""
    text = '東京と京都'
    splitter = WordSplitter(tokenizer_of(kind, tmp_path))
    found = splitter.words(text)
    if 'wordpiece' not in kind:
        assert all(word.end - word.begin <= 3 for word in found)
    assert len(found) > 1 or kind == 'accented_wordpiece'
    assert all(first.end <= second.begin for first, second in zip(found, found[1:]))


@pytest.mark.parametrize('kind, words', [
    ('letters', ['A', 'C', 'G', 'T', 'A', 'C']), ('kmers', ['AC', 'GT', 'AC'])])
def test_a_token_of_a_sequence_is_a_word(kind, words, tmp_path):
    text = 'ACGT AC'
    found = WordSplitter(tokenizer_of(kind, tmp_path)).words(text)
    assert [text[word.begin:word.end] for word in found] == words


def test_marks_tell_the_words_of_a_text_that_is_one_part():
    """As where nothing splits a text before its pieces; an unknown one begins no word."""
    pieces = ['<unk>', '▁', 'a', 'c', 't', 's', '▁c', 'at', '[CLS]', '[SEP]', '[PAD]', '[MASK]']
    numbered = {piece: number for number, piece in enumerate(pieces)}
    library = Tokenizer(models.BPE(numbered, [('▁', 'c'), ('a', 't')], unk_token='<unk>'))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    text = 'cat caét sat'
    found = WordSplitter(HuggingFaceTokenizer(library.to_str())).words(text)
    assert [text[word.begin:word.end] for word in found] == text.split()
