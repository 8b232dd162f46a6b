"""Tasks with every kind of tokenizer: sequences, tags, and answers by characters."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from bert_jax.answers.spans import PlacesByPieces, predict_answers
from bert_jax.rows.questions import Question
from bert_jax.rows.sequences import joined
from bert_jax.rows.squad_reader import read_squad
from bert_jax.rows.squad_windows import squad_windows
from bert_jax.text.kinds import load_tokenizer
from tests.tasks.files import put
from tests.tasks.opened import opened
from tests.text.test_library import BACKTRACKING, SLOW, with_split
from tests.tokenizer_files import ALL_KINDS, KINDS, tokenizer_of, write_tokenizer

TEXTS = ['The cat sat on the mat', 'unwanted talks', 'Ünïcödé naïve café', '東京 12,345 times']
DNA = ['ACGTAC GTA CC', 'GATTACA', 'CCCGG AAAA TTTT', 'ac gt']
MOST_TOKENS = 64


@pytest.fixture
def open_with(tmp_path):
    """Opens a task on a file, with a tokenizer of a kind; gives the task and the tokenizer."""
    def open_task(kind, task, source, own=None, **data):
        path = write_tokenizer(kind, tmp_path / 'tokenizer')
        made = opened(
            task, source, tmp_path, own=own, vocab_file=str(path), lowercase=False,
            eval_source=True, max_seq_length=MOST_TOKENS, **data)
        return made, load_tokenizer(path, lowercase=False)

    return open_task


def texts_for(kind):
    """Texts whose words the tokenizer knows."""
    if kind in ('letters', 'kmers'):
        return DNA
    return TEXTS


def sequences_of(units):
    """The ids of each sequence."""
    return [ids.tolist() for ids in np.split(units.sequences.ids, units.sequences.offsets[1:-1])]


def framed(tokenizer, *texts):
    """The ids of a single text or a pair, put together by hand."""
    vocab = tokenizer.vocab
    ids = [vocab.cls_id, *tokenizer.encode(texts[0]), vocab.sep_id]
    if len(texts) == 2:
        ids += [vocab.sep_id] * (vocab.num_separators - 1)
        ids += [*tokenizer.encode(texts[1]), vocab.sep_id]
    return ids


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_single_texts(kind, open_with, tmp_path):
    texts = texts_for(kind)
    rows = [f'"{text}",{i % 2}' for i, text in enumerate(texts)]
    source = put(tmp_path, 'own.csv', ['text,label', *rows])
    task, tokenizer = open_with(kind, 'classification', source)
    assert sequences_of(task.train) == [framed(tokenizer, text) for text in texts]


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_several_labels(kind, open_with, tmp_path):
    texts = texts_for(kind)
    rows = [f'"{text}","x,{"yz"[i % 2]}"' for i, text in enumerate(texts)]
    source = put(tmp_path, 'own.csv', ['text,label', *rows])
    task, tokenizer = open_with(kind, 'classification', source, own={'multi_label': True})
    assert task.head == 'multi_label'
    assert sequences_of(task.train) == [framed(tokenizer, text) for text in texts]


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_pairs(kind, open_with, tmp_path):
    pairs = list(zip(texts_for(kind), texts_for(kind)[::-1], strict=True))
    rows = [f'"{first}","{second}",{i}.5' for i, (first, second) in enumerate(pairs)]
    source = put(tmp_path, 'own.csv', ['a,b,label', *rows])
    task, tokenizer = open_with(kind, 'regression', source, text='a', text_pair='b')
    expected = [framed(tokenizer, *pair) for pair in pairs]
    assert sequences_of(task.train) == expected
    for ids, first in zip(expected, task.train.sequences.first_lengths, strict=True):
        assert ids[first - 1] == tokenizer.vocab.sep_id != ids[first]


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_choices(kind, open_with, tmp_path):
    context, *choices = texts_for(kind)[:3]
    source = put(tmp_path, 'own.csv', ['text,x,y,label', f'{context},{choices[0]},{choices[1]},0'])
    task, tokenizer = open_with(kind, 'multiple_choice', source, choices='x,y')
    expected = [framed(tokenizer, context, choice) for choice in choices]
    assert sequences_of(task.train) == expected


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_words_have_the_pieces_that_they_have_in_their_text(kind, open_with, tmp_path):
    """The one tag is at the first piece of each word, whatever stands before it."""
    sentences = [text.split() for text in texts_for(kind)]
    lines = []
    for words in sentences:
        lines += [*[f'{word} T{i}' for i, word in enumerate(words)], '']
    task, tokenizer = open_with(kind, 'tagging', put(tmp_path, 'own.txt', [*lines, '']))
    found = sequences_of(task.train)
    assert found == [framed(tokenizer, ' '.join(words)) for words in sentences]
    is_scored = task.train.tokens['token_weights'] > 0
    labels = [task.labels[i] for i in task.train.tokens['token_labels'][is_scored]]
    assert labels == [f'T{i}' for words in sentences for i in range(len(words))]
    firsts = []
    for ids, words in zip(found, sentences, strict=True):
        before = [' '.join(words[:i]) for i in range(len(words))]
        firsts += [ids[1 + len(tokenizer.encode(text))] for text in before]
    assert task.train.sequences.ids[is_scored].tolist() == firsts


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_a_word_without_pieces_is_tagged_like_any_other(kind, open_with, tmp_path):
    rows = [{'tokens': ['a', '', 'cat'], 'tags': ['X', 'Y', 'Z']}] * 2
    task, tokenizer = open_with(kind, 'tagging', put(tmp_path, 'own.jsonl', rows))
    vocab = tokenizer.vocab
    weights = task.train.tokens['token_weights'].reshape(2, -1)
    assert (weights.sum(axis=1) == 3).all()
    stand_in = task.train.sequences.ids[weights[0].nonzero()[0][1]]
    assert stand_in == (vocab.mask_id if vocab.unk_id is None else vocab.unk_id)


def windows_of(questions, tokenizer, **lengths):
    def encode(texts):
        return joined(tokenizer.encode_batch(texts))

    lengths = {'max_length': 384, 'doc_stride': 128, 'max_question_length': 64, **lengths}
    return squad_windows(
        questions, encode, frame=tokenizer.vocab.frame,
        encode_with_places=tokenizer.encode_with_places, **lengths)


def answers_at_labels(windows):
    """The text and the place that the labels of windows stand for, for each question."""
    start, end = np.zeros((2, len(windows.sequences.ids)), np.float32)
    cls = windows.sequences.offsets[:-1]
    start[cls + windows.start_positions] = end[cls + windows.end_positions] = 10
    start[cls[windows.start_positions == 0]] = -10
    found = predict_answers(
        windows, start, end, version='v1', places=PlacesByPieces(), max_answer_length=10**6)
    return [found[question.id].n_best[0] for question in windows.questions]


CONTEXT = (' The cat (1895–1943) sat  on 東京と京都, Ünïcödé 👍🏽 “naïve”\u00a0café… 12,345 ACGT '
           'times\n')
ANSWERS = ['cat', '1895', '1943', 'sat  on', '東京', '京都', 'Ünïcödé', '👍🏽', '“naïve”', 'café',
           '12,345', 'ACGT', 'times', 'The cat (1895–1943) sat', 'naïve”\u00a0café']


@pytest.mark.parametrize('kind', ALL_KINDS)
@pytest.mark.parametrize('lengths', [{}, {'max_length': 32, 'doc_stride': 9}])
def test_answers_come_back_by_characters(kind, lengths, tmp_path):
    tokenizer = tokenizer_of(kind, tmp_path)
    questions = []
    for answer in ANSWERS:
        questions.append(Question(answer, 'ACGT', CONTEXT, ((answer, CONTEXT.index(answer)),)))
    windows = windows_of(questions, tokenizer, **lengths)
    begins, ends = zip(*tokenizer.encode_with_places(CONTEXT).places, strict=True)
    num_exact = 0
    for question, found in zip(questions, answers_at_labels(windows), strict=True):
        ((text, at),) = question.answers
        begin, end = found.place
        if at in begins and at + len(text) in ends:
            assert (found.text, begin, end) == (text, at, at + len(text))
            num_exact += 1
        else:  # pieces that hold more than the answer
            assert begin < at + len(text) and at < end
    assert num_exact >= len(ANSWERS) // 2


@pytest.mark.parametrize('kind', KINDS)
def test_windows_are_framed_as_pairs_and_cover_the_paragraph(kind, tmp_path):
    tokenizer = tokenizer_of(kind, tmp_path)
    context = 'The cat sat on the mat. ' * 20
    windows = windows_of([Question('q', 'the dog', context)], tokenizer,
                         max_length=32, doc_stride=8)
    question = framed(tokenizer, 'the dog', '')[:-1]
    whole = tokenizer.encode(context)
    begin = 0
    for ids, first in zip(
            sequences_of(windows), windows.sequences.first_lengths, strict=True):
        assert ids[:first] == question and len(ids) <= 32 and ids[-1] == tokenizer.vocab.sep_id
        assert ids[first:-1] == whole[begin:begin + len(ids) - first - 1]
        begin += 8
    assert begin - 8 + len(ids) - first - 1 == len(whole)


def trained_on(texts, model, trainer, pre_tokenizer, decoder):
    """A tokenizer of the library, framed as RoBERTa's."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizer
    library.decoder = decoder
    library.train_from_iterator(texts, trainer)
    library.post_processor = processors.RobertaProcessing(('</s>', 2), ('<s>', 0))
    return library


SPECIAL = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']


def byte_level_bpe(texts):
    return trained_on(
        texts, models.BPE(),
        trainers.BpeTrainer(vocab_size=8000, special_tokens=SPECIAL, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def unigram(texts):
    return trained_on(
        texts, models.Unigram(),
        trainers.UnigramTrainer(vocab_size=8000, special_tokens=SPECIAL, unk_token='<unk>',
                                show_progress=False),
        pre_tokenizers.Metaspace(), decoders.Metaspace())


@pytest.mark.slow
@pytest.mark.parametrize(('train', 'fewest_on_boundaries'), [(byte_level_bpe, 0.9), (unigram, 0.5)])
def test_real_answers_come_back_by_characters_from_other_kinds(
    train, fewest_on_boundaries, shared_data, tmp_path
):
    """All answers, of a thousand, that begin and end where pieces do."""
    path = str(shared_data / 'squad' / 'dev-v2.0.cs224n-6078.json.gz')
    questions = [q for q in read_squad(path, version='v2', training=True, by_words=False)
                 if q.answers][:1000]
    contexts = list(dict.fromkeys(question.context for question in questions))
    file = tmp_path / 'tokenizer.json'
    train(contexts).save(str(file))
    tokenizer = load_tokenizer(file, lowercase=False)
    edges = {}
    for context in contexts:
        begins, ends = zip(*tokenizer.encode_with_places(context).places, strict=True)
        edges[context] = set(begins), set(ends)
    num_on_boundaries = 0
    num_exact = 0
    found = answers_at_labels(windows_of(questions, tokenizer))
    for question, answer in zip(questions, found, strict=True):
        text, at = question.answers[0]
        begins, ends = edges[question.context]
        is_exact = answer.text == text
        num_exact += is_exact
        if at in begins and at + len(text) in ends:
            num_on_boundaries += 1
            assert is_exact, question.id
    print(f'{num_exact} of {len(questions)}, {num_on_boundaries} on boundaries')
    assert num_exact >= num_on_boundaries > fewest_on_boundaries * len(questions)


def test_rows_that_the_library_panics_at_are_left_out(tmp_path, capsys):
    path = write_tokenizer('roberta', tmp_path / 'tokenizer')
    path.write_text(with_split(path.read_text(), BACKTRACKING))
    rows = [f'"{text}",{i % 2}' for i, text in enumerate(TEXTS)]
    source = put(tmp_path, 'own.csv', ['text,label', *rows, f'"{SLOW}",0'])
    task = opened('classification', source, tmp_path, vocab_file=str(path), lowercase=False,
                  eval_source=True, max_seq_length=MOST_TOKENS)
    tokenizer = load_tokenizer(path, lowercase=False)
    assert sequences_of(task.train) == [framed(tokenizer, text) for text in TEXTS]
    assert len(task.evaluated[0].units) == len(TEXTS)
    assert '1 of 5 rows have a text that cannot be split' in capsys.readouterr().out
