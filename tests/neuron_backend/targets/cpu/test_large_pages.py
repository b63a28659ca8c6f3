"""Weights move in place, and keep their values and what they share."""

import mmap
import weakref

import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.targets.cpu import aoti
from decodekit.neuron_backend.targets.cpu.large_pages import move_to_large_pages

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs large pages on demand")


def place(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's block of memory begins, and its bytes before the tensor."""
    begin = tensor.untyped_storage().data_ptr()
    return begin, tensor.data_ptr() - begin


class TestMoving:
    def test_keeps_values_shapes_and_strides(self) -> None:
        """Of every dtype, of scalars, of transposed and of spread tensors."""
        tensors = [
            torch.randn(5, 7),
            torch.randn(3, 4).T,
            torch.randn(6).expand(2, 6),
            torch.arange(9, dtype=torch.uint8),
            torch.tensor(3.0, dtype=torch.bfloat16),
            torch.empty(0, 4),
        ]
        before = [(tensor.clone(), tensor.stride()) for tensor in tensors]
        move_to_large_pages(tensors)

        for tensor, (values, strides) in zip(tensors, before, strict=True):
            assert torch.equal(values, tensor)
            assert (values.dtype, strides) == (tensor.dtype, tensor.stride())

    def test_to_one_block_in_their_order(self) -> None:
        """Each begins with a cache line."""
        tensors = [torch.randn(size) for size in (33, 5, 100)]
        move_to_large_pages(tensors)

        assert 1 == len({place(tensor)[0] for tensor in tensors})
        assert [0, 192, 256] == [place(tensor)[1] for tensor in tensors]
        assert 0 == tensors[0].data_ptr() % 4096

    def test_what_is_shared_stays_shared(self) -> None:
        """Views of one tensor, in whatever order they come, and tied parameters."""
        whole = nn.Parameter(torch.randn(8, 4))
        views, tied = [nn.Parameter(whole.data[4:]), nn.Parameter(whole.data[:4])], whole
        move_to_large_pages([*views, whole, tied])
        whole.data.fill_(2.0)

        assert all(bool((view == 2).all()) for view in views)

    def test_twice_moves_once(self) -> None:
        """New tensors go to a block of their own."""
        old, new = torch.randn(9), torch.randn(9)
        move_to_large_pages([old])
        before = place(old)
        move_to_large_pages([old, new])

        assert before == place(old)
        assert place(new)[0] != before[0]

    def test_others_stay(self) -> None:
        """Of other devices, and those that torch does not let change."""
        with torch.inference_mode():
            fixed = torch.randn(3)
        before = fixed.data_ptr()
        move_to_large_pages([torch.empty(3, device="meta"), fixed])

        assert before == fixed.data_ptr()

    def test_the_old_memory_is_free_before_the_next_is_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So weights are in memory once, but for the largest."""
        from decodekit.neuron_backend.targets.cpu import large_pages

        tensors = [torch.randn(50) for _ in range(3)]
        storages = [weakref.ref(tensor.untyped_storage()) for tensor in tensors]
        pointers = [tensor.data_ptr() for tensor in tensors]
        seen = []
        move = large_pages._move

        def watched(area: large_pages._Area, *args: object) -> None:
            seen.append([tensor.data_ptr() != old for tensor, old in zip(tensors, pointers, strict=True)])
            move(area, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(large_pages, "_move", watched)
        move_to_large_pages(tensors)

        assert [[False] * 3, [True, False, False], [True, True, False]] == seen
        assert all(storage() is None for storage in storages)

    def test_the_block_ends_with_its_tensors(self) -> None:
        """Nothing else holds it."""
        from decodekit.neuron_backend.targets.cpu.large_pages import _blocks

        tensor = torch.randn(9)
        move_to_large_pages([tensor])
        begin = place(tensor)[0]

        assert begin in _blocks

        tensor.data = torch.empty(0)

        assert begin not in _blocks


@pytest.mark.slow
@pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler")
class TestDecoders:
    def test_weights_lie_in_one_block(self, tiny_model, tmp_path) -> None:
        """Compiled, cut and loaded; the caller's model is what it was."""
        model = tiny_model("llama")
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        decoder = compile_decoder(model, target="cpu", max_length=32, widths=(1, 5))
        draft = decoder.early_exit(1, widths=(1, 5))
        decoder.save(tmp_path / "saved")
        loaded = load_decoder(tmp_path / "saved")
        ids, start = torch.tensor([[3]]), torch.tensor([0])

        blocks = {place(weight)[0] for weight in decoder.step.parameters()}
        assert 1 == len(blocks)
        assert blocks == {place(weight)[0] for weight in draft.step.parameters()}
        assert torch.equal(decoder.forward(ids, start), loaded.forward(ids, start))
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
