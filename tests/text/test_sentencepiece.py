"""SentencePiece models that were trained with other settings than the usual ones."""

import pytest

from bert_jax.text.sentencepiece import SentencePieceTokenizer
from tests.refusals import refused
from tests.tokenizers_of_kinds import sentence_piece

TEXT = 'The cat sat, on the mat'
KANA = 'のにはをがでと'
JAPANESE = [f'{"東京大学日本語"[i % 6:][:2]}{KANA[i % 7]}{"人工知能研究開発"[i % 7:][:2]}。'
            for i in range(60)]
WITH_LATIN = [text + ending for text in JAPANESE for ending in ('Abc a', ' b c')]
WORDS = ['東京大学日本語人工知能研究開発'[i:][:2] for i in range(14)]
CUT = [
    ' '.join(WORDS[(3 * i + 5 * j + i * j) % 14] for j in range(9)) for i in range(100)]
LETTERS = [text + letters for text in JAPANESE for letters in ('ab', 'bca')]


@pytest.mark.parametrize('settings', [
    {}, {'add_dummy_prefix': False}, {'add_dummy_prefix': False, 'model_type': 'bpe'},
    {'add_dummy_prefix': False, 'normalization_rule_name': 'identity'}])
def test_words_and_sentences_have_the_pieces_that_they_have_in_their_text(settings):
    tokenizer = SentencePieceTokenizer(sentence_piece(**settings))
    ids = tokenizer.encode(TEXT)
    assert sum(tokenizer.encode_words(TEXT.split()), []) == ids
    assert tokenizer.split(TEXT).ids == tokenizer.encode_with_places(TEXT).ids == ids
    assert sum(tokenizer.encode_batch(tokenizer.joinable(['The cat', 'sat, on', 'the mat'])),
               []) == ids
    places = tokenizer.encode_with_places(TEXT).places
    assert [TEXT[begin:end] for begin, end in places] == [tokenizer.shown(i) for i in ids]


@pytest.mark.parametrize(('texts', 'words'), [
    (JAPANESE, ['東京', '大学', 'の', '犬', '研究', '。']),
    (WITH_LATIN, ['東京', '大学', 'の', '犬', '研究', '。', 'Abc']),
    (LETTERS, ['東京', 'ab', '犬', '研究', '猫']),
], ids=['Japanese', 'with spaces between Latin words', 'with letters and no spaces'])
def test_words_of_scripts_without_spaces_have_the_pieces_that_they_have_without_them(texts, words):
    tokenizer = SentencePieceTokenizer(sentence_piece(texts, add_dummy_prefix=False))
    ids = tokenizer.encode(''.join(words))
    assert sum(tokenizer.encode_words(words), []) == ids
    assert sum(tokenizer.encode_batch(tokenizer.joinable(words)), []) == ids
    spaced = '東京 大学 犬 猫 a'
    if texts is WITH_LATIN:  # else it knows no spaces
        assert tokenizer.split(spaced).ids == tokenizer.encode(spaced)
    assert all(tokenizer.encode_words(['犬', '猫', '犬']))  # adjacent unknown words stay


@pytest.mark.parametrize('algorithm', ['unigram', 'bpe'])
def test_a_model_of_japanese_that_was_cut_by_spaces_has_them_between_words(algorithm):
    tokenizer = SentencePieceTokenizer(
        sentence_piece(CUT, add_dummy_prefix=False, model_type=algorithm))
    words = ['東京', '大学', '人工', '学日', '犬', '京大']
    ids = tokenizer.encode(' '.join(words))
    assert ids != tokenizer.encode(''.join(words))
    assert sum(tokenizer.encode_words(words), []) == tokenizer.split(' '.join(words)).ids == ids
    assert sum(tokenizer.encode_batch(tokenizer.joinable(words)), []) == ids


def test_pieces_of_several_words_do_not_hide_the_beginning_of_a_word():
    texts = ['a the cat', 'a dog', 'a mat', 'a b'] * 50
    tokenizer = SentencePieceTokenizer(
        sentence_piece(texts, add_dummy_prefix=False, split_by_whitespace=False))
    assert [''.join(map(tokenizer.vocab.tokens.__getitem__, ids))
            for ids in tokenizer.encode_words(['the', 'cat', 'dog'])] == ['the', '▁cat', '▁dog']


def test_marks_behind_words_are_refused():
    with refused('own.model puts the mark of a word behind it', 'treat_whitespace_as_suffix'):
        SentencePieceTokenizer(sentence_piece(treat_whitespace_as_suffix=True), 'own.model')
