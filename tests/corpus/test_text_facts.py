"""What a text holds: counts, and the scripts of its letters as Unicode's database has them."""

import unicodedata

import pytest

from bert_jax.corpus.source import Document
from bert_jax.corpus.text_facts import facts_of


def facts_of_texts(*texts, split=True):
    return facts_of(Document(text.encode(), split) for text in texts)


def test_documents_sentences_words_and_repeats():
    facts = facts_of_texts('एक गाँव है। दूसरा नगर है।', 'तीसरा', 'एक गाँव है। दूसरा नगर है।')
    assert facts.num_documents == 3
    assert facts.num_duplicates == 1
    assert facts.num_sentences == 5
    assert facts.num_words == 13
    assert facts.num_bytes == sum(
        len(text.encode()) for text in ('एक गाँव है। दूसरा नगर है।', 'तीसरा') for _ in range(2)
    ) - len('तीसरा'.encode())
    assert facts_of_texts('a b. C\nd', split=False).num_sentences == 2


@pytest.mark.parametrize('text', [
    'नमस्ते', 'გამარჯობა', 'ሰላም', 'สวัสดี', 'שלום', 'مرحبا', '안녕', 'こ', 'カ', 'γεια', 'привет', 'Ｆ',
    'தமிழ்'])
def test_a_script_is_that_of_unicode_s_database(text):
    fonts = pytest.importorskip('fontTools.unicodedata')
    (script,) = facts_of_texts(text).scripts
    assert {fonts.script_name(fonts.script(char)) for char in text} == {script}


def test_shares_are_of_letters_and_capitals_are_counted():
    facts = facts_of_texts('Ab, 12 गाँ')
    assert list(facts.scripts) == ['Devanagari', 'Latin']
    assert facts.scripts['Latin'] == 2 / 5  # the vowel signs count
    assert facts.capitals == 1 / 5
    assert facts_of_texts('1, 2').scripts == {}
    assert unicodedata.name('e\u0301'[1]) == 'COMBINING ACUTE ACCENT'
    assert list(facts_of_texts('e\u0301').scripts) == ['Latin']
