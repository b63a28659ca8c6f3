"""What a run counts."""

from decodekit.decoding import Statistics


class TestStatistics:
    def test_counts_by_position(self) -> None:
        """Of drafts of three and two guesses, two and none stood."""
        statistics = Statistics()
        statistics.record(tokens=3, drafted=3, accepted=2)
        statistics.record(tokens=1, drafted=2, accepted=0)

        assert [2, 2, 1] == statistics.drafted
        assert [1, 1, 0] == statistics.accepted
        assert 4 == statistics.tokens
        assert 2.0 == statistics.mean_accepted_length

    def test_is_one_without_verifications(self) -> None:
        """Before anything was verified, a forward gives one token."""
        assert 1.0 == Statistics().mean_accepted_length
        assert 0.0 == Statistics().tokens_per_second

    def test_phases_add_up(self) -> None:
        """A phase that is entered twice has the time of both, also when its body raises."""
        statistics = Statistics()
        for _ in range(2):
            try:
                with statistics.phase("draft"):
                    before = statistics.seconds.get("draft", 0.0)
                    raise KeyError
            except KeyError:
                pass

        assert {"draft"} == set(statistics.seconds)
        assert statistics.seconds["draft"] > before > 0
