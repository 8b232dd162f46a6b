"""CoNLL-2003: files, windows that score every word once, and entity scores against seqeval."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.tagging import (
    ConllExamples,
    conll_scores,
    conll_windows,
    read_conll,
    read_conll_file,
    to_iob2,
    write_conll,
)
from bert_jax.text.vocab import Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

UNK, CLS, SEP, FIRST_PIECE = 100, 101, 102, 1000

IOB1 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC
lamb NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
-DOCSTART- -X- O O

-DOCSTART- -X- O O

Blackburn NNP I-NP I-LOC


EU NNP I-NP I-ORG
"""


def written(tmp_path, text, name='eng.train'):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_words_tags_sentences_and_documents_of_a_file(tmp_path):
    examples = read_conll_file(written(tmp_path, IOB1))
    assert examples.words == [
        'EU', 'rejects', 'German', 'British', 'lamb', 'Peter', 'Blackburn', 'Blackburn', 'EU']
    assert examples.tags == [
        'B-ORG', 'O', 'B-MISC', 'B-MISC', 'O', 'B-PER', 'I-PER', 'B-LOC', 'B-ORG']
    assert examples.lines.tolist() == [3, 4, 5, 6, 7, 9, 10, 15, 18]
    assert examples.sentence_offsets.tolist() == [0, 5, 7, 8, 9]
    assert examples.documents.tolist() == [0, 0, 1, 1]
    assert len(examples) == 4
    assert examples.labels == (
        'O', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC', 'B-ORG', 'I-ORG', 'B-PER', 'I-PER')


@pytest.mark.parametrize('change', [
    pytest.param(lambda text: text.replace('\n', '\r\n'), id='line ends of Windows'),
    pytest.param(lambda text: text.replace(' ', '\t'), id='tabs'),
    pytest.param(lambda text: text.rstrip('\n'), id='no line end at the end'),
    pytest.param(lambda text: '\ufeff' + text, id='a byte-order mark'),
    pytest.param(lambda text: gzip.compress(text.encode()), id='gzipped'),
    pytest.param(
        lambda text: '\n'.join(
            ' '.join(line.split()[::3]) for line in text.split('\n')), id='two columns'),
    pytest.param(
        lambda text: text.replace('German JJ I-NP I', 'German JJ I-NP B').replace(
            'I-ORG', 'B-ORG').replace('I-LOC', 'B-LOC').replace(
            'Peter NNP I-NP I', 'Peter NNP I-NP B'), id='IOB2'),
])
def test_editions_of_a_file_are_read_alike(tmp_path, change):
    changed = change(IOB1)
    assert changed != IOB1
    name = 'eng.train.gz' if isinstance(changed, bytes) else 'eng.train'
    one = read_conll_file(written(tmp_path, changed, name))
    other = read_conll_file(written(tmp_path, IOB1, 'plain'))
    assert one.words == other.words and one.tags == other.tags
    for field in ('lines', 'sentence_offsets', 'documents'):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


def test_a_file_without_documents_is_one_and_odd_spaces_are_words(tmp_path):
    examples = read_conll_file(written(tmp_path, '\u00a0 O\na\u2003b I-X\n\nc O\n'))
    assert examples.words == ['\u00a0', 'a\u2003b', 'c']
    assert examples.documents.tolist() == [0, 0]
    assert examples.labels == ('O', 'B-X', 'I-X')


def test_malformed_lines_are_listed_and_left_out_up_to_a_limit(tmp_path, capsys):
    path = written(tmp_path, 'a NN O\nb I-X\n' + 'c NN I-X\n' * 98)
    examples = read_conll_file(path)
    assert examples.words == ['a'] + ['c'] * 98 and len(examples) == 1
    assert f'{path}, line 2: columns: 2, where 3 are wanted' in capsys.readouterr().err
    with pytest.raises(InputError, match=r'1 of 100 rows are malformed.*line 2: columns: 2'):
        read_conll_file(path, max_malformed=0)


@pytest.mark.parametrize('text, message', [
    ('', 'holds no words'),
    ('-DOCSTART- -X- O O\n\n', 'holds no words'),
    ('EU\nrejects\n', 'one column: there are no tags'),
    ('EU O\nlamb S-ORG\n', r"line 2: 'S-ORG' is not a tag; expected O, B-TYPE or I-TYPE"),
    ('EU O\nlamb I-\n', r"line 2: 'I-' is not a tag"),
    (b'EU O\n\xe9t\xe9 O\n', 'line 2 is not UTF-8'),
])
def test_bad_files_are_refused_in_one_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        read_conll_file(path)
    assert str(caught.value).startswith(path) and '\n' not in str(caught.value)


def test_splits_are_found_in_a_folder(tmp_path):
    written(tmp_path, 'a O\n', 'eng.train')
    written(tmp_path, gzip.compress(b'b O\n'), 'valid.txt.gz')
    assert read_conll(str(tmp_path), 'train').words == ['a']
    assert read_conll(str(tmp_path), 'dev').words == ['b']
    with pytest.raises(InputError, match=r'none of eng\.testb, test\.txt'):
        read_conll(str(tmp_path), 'test')
    with pytest.raises(InputError, match="'dve' is no split; they are train, dev, test"):
        read_conll(str(tmp_path), 'dve')
    with pytest.raises(InputError, match='no folder'):
        read_conll(str(tmp_path / 'absent'), 'train')


def test_the_original_files_and_their_iob2_edition_are_the_same(shared_data):
    folder = shared_data / 'conll2003'
    train = read_conll(str(folder), 'train')
    assert (len(train), len(train.words), train.documents[-1] + 1) == (14041, 203621, 946)
    assert train.labels == (
        'O', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC', 'B-ORG', 'I-ORG', 'B-PER', 'I-PER')
    other = read_conll(str(folder / 'bio'), 'train')
    assert train.tags == other.tags and train.words == other.words
    np.testing.assert_array_equal(train.sentence_offsets, other.sentence_offsets)
    np.testing.assert_array_equal(train.documents, other.documents)


def made_examples(documents):
    """Examples of documents of sentences of words, given by their numbers of pieces.

    A word is written as its place and its number of pieces; see `encode`.
    """
    sentences = [sentence for document in documents for sentence in document]
    counts = [count for sentence in sentences for count in sentence]
    return ConllExamples(
        words=[f'{i}:{count}' for i, count in enumerate(counts)],
        tags=['O' if count == 1 else 'B-X' for count in counts],
        lines=np.arange(len(counts)) + 1,
        sentence_offsets=np.cumsum([0] + [len(sentence) for sentence in sentences]),
        documents=np.repeat(np.arange(len(documents)), [len(d) for d in documents]),
        source='made',
    )


def encode(words):
    """Pieces that tell their word and their place in it: 1000 word + piece."""
    pairs = [tuple(map(int, word.split(':'))) for word in words]
    ids = [FIRST_PIECE * (word + 1) + piece for word, count in pairs for piece in range(count)]
    return np.array(ids, np.int32), np.array([count for _, count in pairs], np.int64)


def windows(examples, max_length, document_context, labels=('O', 'B-X')):
    return conll_windows(
        examples, encode, labels, max_length=max_length, document_context=document_context,
        cls_id=CLS, sep_id=SEP, unk_id=UNK)


def check_windows(examples, found, max_length, document_context):
    """What holds of every set of windows; gives what surrounds each word in its window."""
    sequences, offsets = found.sequences, found.sequences.offsets
    counts = encode(examples.words)[1]
    length = np.maximum(counts, 1)
    first = np.cumsum(length) - length
    sentence = np.repeat(np.arange(len(examples)), np.diff(examples.sentence_offsets))
    document = examples.documents[sentence]
    span = document if document_context else sentence
    pieces = [
        FIRST_PIECE * (w + 1) + i if count else UNK
        for w, count in enumerate(counts) for i in range(max(count, 1))
    ]
    span_of_piece = np.repeat(span, length)

    assert len(found.word_index) == len(found.labels) == len(sequences.ids) == offsets[-1]
    np.testing.assert_array_equal(sequences.first_lengths, sequences.lengths)
    scored = found.word_index >= 0
    # Every word once, in the order of the text.
    np.testing.assert_array_equal(found.word_index[scored], np.arange(len(counts)))
    np.testing.assert_array_equal(found.labels[scored], counts != 1)
    assert not found.labels[~scored].any()
    context = np.zeros((len(counts), 2), np.int64)
    for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
        assert 3 <= end - begin <= max_length
        ids, words = sequences.ids[begin:end], found.word_index[begin:end]
        assert ids[0] == CLS and ids[-1] == SEP and words[0] == words[-1] == -1
        here = np.flatnonzero(words >= 0)
        assert len(here), 'a window is there to score something'
        # One piece after the other, as in the text, and of one span.
        place = first[words[here]] - here
        assert len(set(place)) == 1
        covered = range(place[0] + 1, place[0] + len(ids) - 1)
        assert list(ids[1:-1]) == [pieces[i] for i in covered]
        assert len(set(span_of_piece[covered])) == 1
        assert covered[0] in first, 'a window begins with a word'
        context[words[here]] = np.stack([here - 1, len(ids) - 2 - here], axis=1)
    left_in_span = first - np.searchsorted(span_of_piece, span)
    right_in_span = np.searchsorted(span_of_piece, span, side='right') - 1 - first
    return context, np.stack([left_in_span, right_in_span], axis=1)


pieces_of_words = st.lists(st.sampled_from([1, 1, 1, 2, 3, 0, 9]), min_size=1, max_size=30)
documents = st.lists(
    st.lists(pieces_of_words, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(deadline=None)
@given(documents, st.integers(3, 70), st.booleans())
def test_every_word_is_scored_once_in_windows_of_its_own_span(made, max_length, document_context):
    examples = made_examples(made)
    found = windows(examples, max_length, document_context)
    context, in_span = check_windows(examples, found, max_length, document_context)
    # A quarter of the window, less what rounding and the snapping to a whole word may take.
    wanted = np.minimum((max_length - 2) // 4 - 10, in_span)
    assert (context >= wanted).all()


def test_a_span_that_fits_is_one_window_and_a_longer_one_costs_at_most_twice_its_tokens():
    lengths = [10, 30, 31, 45, 46, 500]
    examples = made_examples([[[1] * length] for length in lengths])
    found = windows(examples, 32, document_context=True)
    check_windows(examples, found, 32, True)
    of_window = np.searchsorted(
        np.cumsum(lengths), found.word_index[found.word_index >= 0], side='right')
    at = np.repeat(np.arange(len(found.sequences)), found.sequences.lengths)[found.word_index >= 0]
    number = [len(set(at[of_window == i])) for i in range(len(lengths))]
    assert number == [1, 1, 2, 2, 3, 33]  # one more for every 15 beyond 30
    tokens = np.array(number)[2:] * 30
    assert (tokens <= 2 * np.array(lengths[2:])).all()


def test_neighbours_fill_the_window_only_with_document_context():
    examples = made_examples([[[1, 2], [3], [1]], [[1, 1]]])
    alone = windows(examples, 20, document_context=False)
    assert alone.sequences.lengths.tolist() == [5, 5, 3, 4]
    assert alone.word_index.tolist() == [
        -1, 0, 1, -1, -1, -1, 2, -1, -1, -1, -1, 3, -1, -1, 4, 5, -1]
    assert alone.labels.tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert windows(examples, 20, document_context=True).sequences.lengths.tolist() == [9, 4]


def test_a_word_without_pieces_becomes_unknown_and_is_scored():
    vocab = Vocab.from_tokens(
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', '##b', 'b', '.'])
    tokenizer = WordPieceTokenizer(vocab, lowercase=False)
    words = ['\u200b', 'ab.', '\x07', '\x85', 'Q', '\u00a0', '\ufffd']
    examples = ConllExamples(
        words, ['O'] * len(words), np.arange(len(words)), np.array([0, len(words)]),
        np.array([0]), 'made')

    def encode_words(texts):
        ids = [tokenizer.encode(text) for text in texts]
        return np.array(sum(ids, []), np.int32), np.array([len(i) for i in ids], np.int64)

    found = conll_windows(
        examples, encode_words, ('O',), max_length=16, document_context=False,
        cls_id=vocab.cls_id, sep_id=vocab.sep_id, unk_id=vocab.unk_id)
    tokens = [vocab.tokens[i] for i in found.sequences.ids]
    assert tokens == [
        '[CLS]', '[UNK]', 'a', '##b', '.', '[UNK]', '[UNK]', '[UNK]', '[UNK]', '[UNK]', '[SEP]']
    assert found.word_index.tolist() == [-1, 0, 1, -1, -1, 2, 3, 4, 5, 6, -1]


@pytest.mark.parametrize('max_length, document_context, cost', [
    (64, False, 1.15), (128, False, 1.15), (128, True, 1.85), (512, True, 1.35),
])
def test_no_word_of_a_real_file_is_lost(shared_data, max_length, document_context, cost):
    examples = read_conll(str(shared_data / 'conll2003'), 'dev')
    tokenizer = WordPieceTokenizer.from_file(
        shared_data / 'vocab/bert-base-cased-vocab.txt', lowercase=False)
    ids = [tokenizer.encode(word) for word in examples.words]
    pieces = np.array([i for word in ids for i in word], np.int32)
    counts = np.array([len(word) for word in ids])
    vocab = tokenizer.vocab
    found = conll_windows(
        examples, lambda words: (pieces, counts), examples.labels, max_length=max_length,
        document_context=document_context, cls_id=vocab.cls_id, sep_id=vocab.sep_id,
        unk_id=vocab.unk_id)
    scored = found.word_index >= 0
    assert found.word_index[scored].tolist() == list(range(51362))
    assert found.sequences.ids[scored].tolist() == [word[0] for word in ids]
    assert [examples.labels[i] for i in found.labels[scored]] == examples.tags
    assert found.sequences.lengths.max() <= max_length
    assert len(found.sequences.ids) < cost * counts.sum()


ANY_TAG = st.sampled_from(['O', 'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC', 'I-A-B'])


def flat(sentences):
    """Tags of all sentences in one list, and the offsets of the sentences."""
    offsets = np.cumsum([0] + [len(sentence) for sentence in sentences])
    return [tag for sentence in sentences for tag in sentence], offsets


def cut(tags, offsets):
    return [list(tags[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


@st.composite
def sentence_pairs(draw):
    """Gold and predicted tags of a few sentences; nothing says that they are valid."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    gold = [draw(st.lists(ANY_TAG, min_size=n, max_size=n)) for n in lengths]
    # Predictions that are often right.
    predicted = [
        [draw(st.one_of(st.just(tag), ANY_TAG)) for tag in sentence] for sentence in gold
    ]
    return gold, predicted


@pytest.mark.filterwarnings('ignore::UserWarning')
@settings(deadline=None)
@given(sentence_pairs())
def test_scores_are_those_of_seqeval_whatever_the_tags(pair):
    seqeval = pytest.importorskip('seqeval.metrics', reason='seqeval is not installed')
    gold, predicted = pair
    (gold_tags, offsets), (predicted_tags, _) = flat(gold), flat(predicted)
    ours = conll_scores(predicted_tags, gold_tags, offsets)
    theirs = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0) \
        if any(tag != 'O' for tag in gold_tags + predicted_tags) else {}
    types = {name for name in theirs if not name.endswith(' avg')}
    assert {name.partition('/')[0] for name in ours if '/' in name} == types
    for name in types | ({'micro avg'} & set(theirs)):
        prefix = '' if name == 'micro avg' else f'{name}/'
        for ours_key, theirs_key in (
            ('precision', 'precision'), ('recall', 'recall'), ('f1', 'f1-score')
        ):
            assert ours[prefix + ours_key] == pytest.approx(theirs[name][theirs_key], abs=1e-12)
    if gold_tags:
        assert ours['accuracy'] == pytest.approx(seqeval.accuracy_score(gold, predicted))
    if not types:
        assert ours['f1'] == ours['precision'] == ours['recall'] == 0.0


@settings(deadline=None)
@given(sentence_pairs())
def test_iob2_has_the_same_entities_each_with_a_beginning(pair):
    tags, offsets = flat(pair[0])
    converted = to_iob2(tags, offsets)
    assert to_iob2(converted, offsets) == converted
    for before, after in zip(tags, converted, strict=True):
        assert before[1:] == after[1:] and (before == after or (before[0], after[0]) == ('I', 'B'))
    for sentence in cut(converted, offsets):
        for previous, tag in zip(['O', *sentence], sentence, strict=False):
            assert tag[0] != 'I' or previous[1:] == tag[1:]
    scores = conll_scores(converted, tags, offsets)
    assert scores['f1'] == (1.0 if set(tags) - {'O'} else 0.0)


@pytest.mark.parametrize('tags, expected', [
    # IOB1: B- only between neighbours of one type.
    ('I-PER I-PER B-PER O I-LOC', 'B-PER I-PER B-PER O B-LOC'),
    ('I-PER I-LOC I-LOC', 'B-PER B-LOC I-LOC'),
    ('B-PER I-PER O I-PER', 'B-PER I-PER O B-PER'),
    ('B-PER I-LOC', 'B-PER B-LOC'),
    ('I-PER | I-PER', 'B-PER | B-PER'),
    ('O | | I-PER I-PER', 'O | | B-PER I-PER'),
    ('', ''),
])
def test_tags_in_iob2(tags, expected):
    split = [part.split() for part in tags.split('|')]
    assert cut(to_iob2(*flat(split)), flat(split)[1]) == [
        part.split() for part in expected.split('|')]


@pytest.mark.parametrize('gold, predicted, correct, found, wanted', [
    ('B-PER I-PER O', 'B-PER I-PER O', 1, 1, 1),
    ('B-PER I-PER O', 'I-PER I-PER O', 1, 1, 1),  # the beginning may be marked with I-
    ('B-PER I-PER O', 'B-PER O O', 0, 1, 1),  # too short
    ('B-PER I-PER O', 'B-PER I-PER I-PER', 0, 1, 1),  # too long
    ('B-PER I-PER O', 'B-LOC I-LOC O', 0, 1, 1),  # of another type
    ('B-PER I-PER O', 'B-PER I-LOC O', 0, 2, 1),  # another type begins another entity
    ('B-PER B-PER O', 'B-PER I-PER O', 0, 1, 2),
    ('B-PER O B-PER', 'B-PER O O', 1, 1, 2),
    ('O O O', 'O B-PER O', 0, 1, 0),
    ('B-PER | I-PER', 'B-PER | B-PER', 2, 2, 2),  # entities end with their sentence
    ('O O', 'O O', 0, 0, 0),
])
def test_scores_by_hand(gold, predicted, correct, found, wanted):
    gold_tags, offsets = flat([part.split() for part in gold.split('|')])
    predicted_tags, _ = flat([part.split() for part in predicted.split('|')])
    scores = conll_scores(predicted_tags, gold_tags, offsets)
    assert scores['precision'] == (correct / found if found else 0)
    assert scores['recall'] == (correct / wanted if wanted else 0)
    assert scores['f1'] == (2 * correct / (found + wanted) if found + wanted else 0)


def test_scores_of_each_type_and_of_words():
    scores = conll_scores(
        ['B-PER', 'O', 'B-LOC', 'I-LOC', 'B-PER'], ['B-PER', 'O', 'B-LOC', 'O', 'B-LOC'],
        np.array([0, 2, 5]))
    assert scores == {
        'precision': 1 / 3, 'recall': 1 / 3, 'f1': 1 / 3, 'accuracy': 3 / 5,
        'LOC/precision': 0.0, 'LOC/recall': 0.0, 'LOC/f1': 0.0,
        'PER/precision': 0.5, 'PER/recall': 1.0, 'PER/f1': 2 / 3,
    }


@pytest.mark.parametrize('tag', ['S-PER', 'PER', 'B', 'I-', 'o', ''])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(InputError, match=f"'{tag}' is not a tag"):
        conll_scores([tag], ['O'], np.array([0, 1]))
    with pytest.raises(InputError, match=f"'{tag}' is not a tag"):
        to_iob2(['O', tag], np.array([0, 2]))


def test_predictions_are_written_as_conlleval_reads_them(tmp_path):
    path = tmp_path / 'predictions.txt'
    write_conll(
        path, ['Ünal', 'said', 'EU'], ['B-PER', 'O', 'B-ORG'], ['B-PER', 'O', 'I-LOC'],
        np.array([0, 2, 3]))
    assert path.read_bytes().decode() == 'Ünal B-PER B-PER\nsaid O O\n\nEU B-ORG I-LOC\n\n'
