"""Windows over long texts, against the loops of google-research/bert's run_squad."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from bert_jax.predict.windows import around, sliding, with_most_context


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_around_is_full_inside_the_text_and_centred(length, size, data):
    position = data.draw(st.integers(0, length - 1))
    begin = around(length, position, size)
    assert 0 <= begin <= position < begin + size
    if length >= size:
        assert begin + size <= length
        before, after = position - begin, begin + size - 1 - position
        assert abs(before - after) <= 1 or begin in (0, length - size)


def original_windows(length, size, stride):
    """The loop of `convert_examples_to_features`, and of `_check_is_max_context`."""
    Span = collections.namedtuple('Span', ['start', 'length'])
    spans, start = [], 0
    while start < length:
        span = min(length - start, size)
        spans.append(Span(start, span))
        if start + span == length:
            break
        start += min(span, stride)
    best = []
    for position in range(length):
        best_score, best_index = None, None
        for index, span in enumerate(spans):
            end = span.start + span.length - 1
            if not span.start <= position <= end:
                continue
            score = min(position - span.start, end - position) + 0.01 * span.length
            if best_score is None or score > best_score:
                best_score, best_index = score, index
        best.append(best_index)
    return [tuple(span) for span in spans], best


@given(st.integers(1, 80), st.integers(1, 20), st.integers(1, 20))
def test_sliding_windows_are_the_originals(length, size, stride):
    windows, best = original_windows(length, size, stride)
    assert sliding(length, size, stride) == windows
    assert with_most_context(windows, length).tolist() == best
