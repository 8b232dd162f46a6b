"""SentencePiece models that were trained with other settings than the usual ones."""

import io

import pytest
import sentencepiece

from bert_jax.text.sentencepiece import SentencePieceTokenizer
from tests.refusals import refused
from tests.tokenizers_of_kinds import TEXTS

TEXT = 'The cat sat, on the mat'


def model(**settings):
    """A model with these settings of its trainer."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS), model_writer=written, vocab_size=200, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=['[CLS]', '[SEP]', '[MASK]'], **settings)
    return written.getvalue()


@pytest.mark.parametrize('settings', [
    {}, {'add_dummy_prefix': False}, {'add_dummy_prefix': False, 'model_type': 'bpe'},
    {'add_dummy_prefix': False, 'normalization_rule_name': 'identity'}])
def test_words_and_sentences_have_the_pieces_that_they_have_in_their_text(settings):
    tokenizer = SentencePieceTokenizer(model(**settings))
    ids = tokenizer.encode(TEXT)
    assert sum(tokenizer.encode_words(TEXT.split()), []) == ids
    assert tokenizer.split(TEXT).ids == tokenizer.encode_with_places(TEXT).ids == ids
    assert sum(tokenizer.encode_batch(tokenizer.joinable(['The cat', 'sat, on', 'the mat'])),
               []) == ids
    places = tokenizer.encode_with_places(TEXT).places
    assert [TEXT[begin:end] for begin, end in places] == [tokenizer.shown(i) for i in ids]


def test_marks_behind_words_are_refused():
    with refused('own.model puts the mark of a word behind it', 'treat_whitespace_as_suffix'):
        SentencePieceTokenizer(model(treat_whitespace_as_suffix=True), 'own.model')
