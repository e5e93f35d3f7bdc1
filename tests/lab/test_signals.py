"""Ctrl-C and SIGTERM: the first is a wish, the second ends at once; then all is as it was."""

from __future__ import annotations

import signal
import threading

import pytest

from elbowroom.lab.signals import interruptible

BOTH = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in BOTH]


@pytest.mark.parametrize("number", BOTH)
def test_the_first_is_a_wish(number):
    before = handlers()
    with interruptible() as wished:
        assert wished() is False
        signal.raise_signal(number)
        assert wished() is True
        assert wished() is True
    assert handlers() == before


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_the_second_ends_at_once(first, second):
    before = handlers()
    with interruptible():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
    assert handlers() == before


def test_an_error_puts_the_handlers_back():
    before = handlers()
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert handlers() == before


def test_one_inside_another():
    with interruptible() as outer:
        with interruptible() as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner()
            assert not outer()
        signal.raise_signal(signal.SIGINT)
        assert outer()


def test_a_handler_that_was_not_set_from_python(monkeypatch):
    setter, seen = signal.signal, []

    def from_c(number, handler):
        seen.append(handler)
        setter(number, handler)  # and returns None, as it does for such a handler

    before = handlers()
    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", from_c)
        with interruptible():
            pass
    assert seen[2:] == [signal.SIG_DFL] * 2
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


def test_another_thread_changes_nothing():
    before, found = handlers(), []

    def work():
        with interruptible() as wished:
            found.append((handlers(), wished()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(before, False)]
