"""Long texts: the windows that cover them, and how the outputs of windows are combined."""

import numpy as np
import pytest

from bert_jax.heads import HEADS
from bert_jax.rows.sequences import joined, make_sequences, text_windows
from bert_jax.text.frames import berts_frame

CLS, SEP = 2, 3
LIMITS = {'max_length': 12, 'frame': berts_frame(CLS, SEP)}


def texts(num, longest, seed):
    """Texts of fewer than `longest` tokens; no two tokens of all texts are equal."""
    lengths = np.random.default_rng(seed).integers(0, longest, num)
    return [list(range(100 * i + 10, 100 * i + 10 + n)) for i, n in enumerate(lengths)]


def parts(windows):
    """(text, tokens of the first segment, of the second) of each window, without [CLS], [SEP]."""
    s = windows.sequences
    for i, text in enumerate(windows.text):
        ids = s.ids[s.offsets[i] : s.offsets[i + 1]].tolist()
        n = int(s.first_lengths[i])
        yield text, ids[1 : n - 1], ids[n:-1]


def test_a_text_is_covered_and_neighbours_overlap():
    found = texts(40, 80, 0)
    windows = text_windows(joined(found), None, 'mean', **LIMITS)
    assert windows.sequences.lengths.max() <= 12
    assert sorted(set(windows.text)) == list(range(40))
    for i, text in enumerate(found):
        mine = [first for of, first, _ in parts(windows) if of == i]
        assert len(mine) == 1 or all(len(x) == 10 for x in mine)
        assert sorted(set().union(*mine)) == text
        for x, y in zip(mine, mine[1:]):
            assert len(set(x) & set(y)) >= 5


@pytest.mark.parametrize('seed', [1, 2])
def test_each_window_of_a_pair_has_part_of_the_longer_text_beside_the_shorter(seed):
    a = texts(40, 30, seed)
    b = [[1000 + x for x in ids] for ids in texts(40, 30, seed + 10)]
    windows = text_windows(joined(a), joined(b), 'max', **LIMITS)
    assert windows.sequences.lengths.max() <= 12
    for i in range(40):
        in_first = [first for of, first, _ in parts(windows) if of == i]
        in_second = [second for of, _, second in parts(windows) if of == i]
        if len(a[i]) > len(b[i]):
            long, short, in_long, in_short = a[i], b[i], in_first, in_second
        else:
            long, short, in_long, in_short = b[i], a[i], in_second, in_first
        assert sorted(set().union(*in_long)) == long
        assert len(in_short) == 1 or all(ids == short[:4] for ids in in_short)


SHORT = joined(texts(20, 5, 5))
SECOND = joined(texts(20, 6, 6))
LONG = joined(texts(20, 50, 50))


@pytest.mark.parametrize(('a', 'b', 'how'), [
    (SHORT, None, 'first'), (SHORT, None, 'mean'), (SHORT, SECOND, 'first'),
    (SHORT, SECOND, 'mean'), (LONG, None, 'first'),
], ids=['fit', 'fit in a window', 'pairs fit', 'pairs fit in a window', 'are cut'])
def test_texts_that_fit_or_are_cut_are_the_sequences_of_training(a, b, how):
    expected = make_sequences(a, b, **LIMITS)
    found = text_windows(a, b, how, **LIMITS)
    np.testing.assert_array_equal(found.sequences.ids, expected.ids)
    np.testing.assert_array_equal(found.sequences.first_lengths, expected.first_lengths)
    values = np.random.default_rng(0).normal(size=(20, 3))
    assert found.combined_logits(HEADS['classification'], values) is values


@pytest.mark.parametrize('head', ['classification', 'multi_label', 'regression'])
@pytest.mark.parametrize('how', ['mean', 'max'])
def test_probabilities_are_combined(head, how):
    windows = text_windows(joined(texts(10, 60, 6)), None, how, **LIMITS)
    logits = np.random.default_rng(1).normal(0, 30, (len(windows.text), 3)).astype(np.float32)

    def probabilities(x):
        x = x.astype(np.float64)
        if head == 'classification':
            x = np.exp(x - x.max(1, keepdims=True))
            return x / x.sum(1, keepdims=True)
        if head == 'multi_label':
            return 1 / (1 + np.exp(-x))
        return x

    each = probabilities(logits)
    found = probabilities(windows.combined_logits(HEADS[head], logits))
    for i in range(10):
        mine = windows.text == i
        expected = each[mine].max(axis=0)
        if how == 'mean':
            weights = windows.sequences.lengths[mine]
            expected = np.average(each[mine], axis=0, weights=weights)
        if head == 'classification':
            expected = expected / expected.sum()
        np.testing.assert_allclose(found[i], expected, rtol=1e-6, atol=1e-12)
