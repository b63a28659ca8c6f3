"""A peer's process."""

from pathlib import Path

import pytest

from decodekit.benchmarks.peers.process import AbsentPeerError, PeerError, PeerProcess

TOY = """
import os

print("what a library prints is no answer")


class Toy:
    facts = {"threads": os.environ["OMP_NUM_THREADS"]}

    def __init__(self, specification):
        self.specification = specification

    def generate(self, value):
        os.system("echo nor is this")
        return 2 * value + self.specification["offset"]

    def score(self):
        os._exit(3)


peer = Toy
"""


def start(tmp_path: Path, text: str, **specification: int) -> PeerProcess:
    """A peer with the code *text*."""
    file = tmp_path / "toy_peer.py"
    file.write_text(text)
    return PeerProcess.start("toy", file, specification, threads=3)


def test_it_answers(tmp_path: Path) -> None:
    """First the facts, then an answer per request; printed output does not interfere."""
    toy = start(tmp_path, TOY, offset=1)
    try:
        assert {"threads": "3"} == toy.facts
        assert [7, 9] == [toy.ask("generate", value=3), toy.ask("generate", value=4)]
    finally:
        toy.end()

    assert 0 == toy.process.returncode


def test_a_missing_package_is_absence(tmp_path: Path) -> None:
    """The missing package is named."""
    with pytest.raises(AbsentPeerError, match="no_such_package is not installed"):
        start(tmp_path, "import no_such_package")


def test_a_failure_is_no_absence(tmp_path: Path) -> None:
    """A peer that cannot be created."""
    with pytest.raises(PeerError, match="toy has ended with status 1"):
        start(tmp_path, "raise ValueError('no')")


def test_an_end_in_the_middle(tmp_path: Path) -> None:
    """The exit status is reported at the unanswered request and at the next."""
    toy = start(tmp_path, TOY, offset=0)
    for request in ({"do": "score"}, {"do": "generate", "value": 1}):
        with pytest.raises(PeerError, match="toy has ended with status 3"):
            toy.ask(**request)
    toy.end()
