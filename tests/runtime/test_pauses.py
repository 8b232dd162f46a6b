"""What is long between two steps is left when a run has to stop, and only then."""

import threading
from concurrent.futures import Future

import pytest

from bert_jax.runtime import pauses
from bert_jax.runtime.pauses import (
    Interrupted,
    calling,
    interruptible,
    pause,
    result_of,
    waiting_for,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(pauses, '_SECONDS', 0.01)


def test_a_pause_asks_only_within_the_block_and_its_thread():
    asked = []

    def should_stop():
        asked.append(threading.current_thread())
        return False

    pause()
    with interruptible(should_stop):
        pause()
        other = threading.Thread(target=pause)
        other.start()
        other.join()
    pause()
    assert asked == [threading.current_thread()]


@pytest.mark.parametrize('wait', [
    pytest.param(lambda released: calling(released.wait), id='a program that is compiled'),
    pytest.param(lambda released: waiting_for(released.wait), id='what is written'),
    pytest.param(lambda released: result_of(Future()), id='data'),
])
def test_waiting_is_left_while_it_lasts(wait):
    released = threading.Event()
    polls = iter([False, False, True])
    with pytest.raises(Interrupted), interruptible(lambda: next(polls)):
        wait(released)
    released.set()


def test_one_of_several_hosts_asks_as_often_as_it_likes_while_it_waits(monkeypatch):
    monkeypatch.setattr(pauses.hosts, 'count', lambda: 2)
    ended = Future()
    ended.set_result('data')
    answers = {False: iter([False, False, True]), True: iter([False, True])}

    def should_leave(is_over):
        return next(answers[is_over])

    def never():
        raise AssertionError('it is asked equally often on all hosts')

    with interruptible(never, should_leave):
        assert result_of(ended) == 'data'
        for future in (Future(), ended):
            with pytest.raises(Interrupted):
                result_of(future)


def test_a_result_that_comes_as_a_poll_ends_is_a_result():
    class Late(Future):
        """Is done just after a wait for it has timed out."""

        def result(self, timeout=None):
            if timeout is not None:
                self.set_result('data')
                raise TimeoutError
            return super().result()

    late = Late()
    threading.Timer(0.05, lambda: late.done() or late.set_result('data')).start()
    with interruptible(lambda: False):
        assert result_of(late) == 'data'


@pytest.mark.parametrize('fault', [ValueError('bad'), TimeoutError('slow')], ids=repr)
def test_results_and_errors_are_those_of_the_function(fault):
    def fail():
        raise fault

    def thread():
        return threading.current_thread()

    assert calling(thread) is threading.current_thread()
    with interruptible(lambda: False):
        assert calling(thread) is not threading.current_thread()
        with pytest.raises(type(fault), match=str(fault)):
            calling(fail)
