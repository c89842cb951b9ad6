import numpy as np

from worldmodel.serving.play.ring_buffer import Moment, Tape


def moment(number: int, beside: bool = True) -> Moment:
    picture = np.full((2, 3, 3), number, np.uint8)
    return Moment(picture, picture + 100 if beside else None, np.array([float(number)]))


def test_the_oldest_moments_are_overwritten_and_the_newest_taken_back() -> None:
    tape = Tape(4)
    for number in range(7):
        tape.append(moment(number, beside=number != 5))
    assert [int(one.command[0]) for one in tape] == [3, 4, 5, 6]
    assert [int(one.dream[0, 0, 0]) for one in tape] == [3, 4, 5, 6]
    assert [one.beside is None for one in tape] == [False, False, True, False]
    tape.pop()
    tape.append(moment(9))
    assert [int(one.dream[0, 0, 0]) for one in tape] == [3, 4, 5, 9]
    assert tape[-1].beside[0, 0, 0] == 109
    tape.clear()
    tape.append(moment(1))
    assert [int(one.dream[0, 0, 0]) for one in tape] == [1]
