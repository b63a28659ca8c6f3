"""Arrivals and figures of the serving benchmark."""

import pytest

from decodekit.benchmarks.serving.workload import Arrival, Served, Timeline, arrivals, play


class TestArrivals:
    def test_all_at_once(self) -> None:
        """Every prompt once, in random order."""
        found = arrivals([[1], [2], [3]], None, seed=1)

        assert {(1,), (2,), (3,)} == {each.ids for each in found}
        assert {0.0} == {each.after for each in found}

    def test_at_a_rate(self) -> None:
        """Of 2,000 requests the mean gap is within five standard deviations, 1 / rate / √n, of 1 / rate."""
        found = arrivals([[i] for i in range(2001)], 50.0, seed=2)

        assert sorted(found, key=lambda each: each.after) == found
        assert 0.02 == pytest.approx(found[-1].after / 2000, abs=5 * 0.02 / 2000**0.5)


class TestPlay:
    def test_notes_what_each_request_got(self) -> None:
        """In the order of the requests, though they are sent in threads."""
        requests = [Arrival(0.0, (i,)) for i in range(5)]
        found = play(requests, lambda request, timeline: timeline.tokens.append(request.ids[0]))

        assert [[0], [1], [2], [3], [4]] == [each.tokens for each in found]

    def test_raises_what_a_request_raised(self) -> None:
        """After the others have ended."""

        def send(request: Arrival, timeline: Timeline) -> None:
            timeline.tokens.append(1 / request.ids[0])

        with pytest.raises(ZeroDivisionError):
            play([Arrival(0.0, (0,)), Arrival(0.0, (1,))], send)


def test_the_figures() -> None:
    """Tokens over the whole time; tokens that came together are one answer."""
    served = Served.of([Timeline(1.0, [1.5, 1.5, 2.0]), Timeline(1.0, [2.0, 3.0])])

    assert 5 / 2 == served.tokens_per_second
    assert 750.0 == served.first[0]
    assert (750.0, 975.0, 995.0) == pytest.approx(served.gap)
