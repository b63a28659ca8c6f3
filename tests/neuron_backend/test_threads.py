"""Number of threads of a forward."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding.thread_number import SETS_CALLING_THREAD
from decodekit.neuron_backend import CompiledDecoder, compile_decoder
from decodekit.neuron_backend.threads import on_threads


class TestThreads:
    @pytest.mark.parametrize("threads", [1, 3, None])
    def test_a_forward_runs_on_as_many(
        self, threads: int | None, tiny_model: Callable[..., PreTrainedModel], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And restores torch's number of threads."""
        torch_own = torch.get_num_threads()
        decoder = compile_decoder(
            tiny_model("llama"),
            max_length=16,
            widths=(1, 4),
            tree_widths=(4,),
            target="eager",
            threads=threads,
        )
        seen = []
        for step in (decoder.step, decoder.tree_step):
            forward = step.forward

            def spying(*inputs: Any, forward: Any = forward) -> Any:
                seen.append(torch.get_num_threads())
                return forward(*inputs)

            monkeypatch.setattr(step, "forward", spying)
        decoder.forward(torch.tensor([[1]]), torch.tensor([0]))
        decoder.forward_tree(torch.tensor([[1, 2, 3, 4]]), torch.tensor([1]), torch.tensor([[-1, 0, 0, 1]]))

        assert [threads or torch_own] * 2 == seen
        assert torch_own == torch.get_num_threads()

    def test_are_put_back_after_an_error(self) -> None:
        """Even if the body fails."""
        before = torch.get_num_threads()
        with pytest.raises(RuntimeError, match="broken"), on_threads(before + 1):
            raise RuntimeError("broken")

        assert before == torch.get_num_threads()

    @pytest.mark.skipif(not SETS_CALLING_THREAD, reason="needs a torch with OpenMP")
    def test_a_thread_that_begins_meanwhile_is_not_affected(self) -> None:
        """It would keep the number for its life."""
        seen: list[int] = []
        with on_threads(torch.get_num_threads() + 1):
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()

        assert [torch.get_num_threads()] == seen

    @pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
    def test_are_a_whole_number(self, threads: Any, tiny_model: Callable[..., PreTrainedModel]) -> None:
        """An integer >= 1."""
        with pytest.raises(ValueError, match="'threads' must be None or a whole number >= 1: got"):
            compile_decoder(tiny_model("llama"), max_length=16, widths=(1,), target="eager", threads=threads)


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_a_number_that_is_set_later_is_checked(threads: Any, llama: CompiledDecoder) -> None:
    """At the next forward."""
    before, llama.threads = llama.threads, threads
    try:
        with pytest.raises(ValueError, match="'threads' must be None or a whole number >= 1"):
            llama.forward(torch.full((2, llama.shape.widths[0]), 3), torch.zeros(2, dtype=torch.int64))
    finally:
        llama.threads = before
