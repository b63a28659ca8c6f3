"""Weights in large pages keep their values and what they share, and are given back."""

import mmap

import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend import compile_decoder, large_pages, load_decoder
from decodekit.neuron_backend.large_pages import LargePages, has_large_pages, move_to_large_pages

from ..toolchain_mark import needs_toolchain

needs_pages = pytest.mark.skipif(not has_large_pages(), reason="needs large pages on demand")


def lies_in_block(tensor: Tensor) -> bool:
    """Whether a tensor lies in memory of large pages."""
    return large_pages._lies_in_block(tensor.data_ptr())


@pytest.fixture
def _refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that gives no memory of its own."""

    def none(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", none)


@needs_pages
class TestGivingOut:
    def test_pieces_lie_one_after_the_other(self) -> None:
        """Each begins with a cache line, and has a storage of its own."""
        memory = LargePages()
        first, second = memory.empty((33,), torch.float32), memory.empty((2, 3), torch.bfloat16)

        assert 192 == second.data_ptr() - first.data_ptr()
        assert [132, 12] == [each.untyped_storage().nbytes() for each in (first, second)]
        assert ((2, 3), torch.bfloat16) == (tuple(second.shape), second.dtype)

    def test_large_pieces_have_a_block_of_their_own(self) -> None:
        """And small ones go on in a new one."""
        memory = LargePages()
        for size in (10, large_pages._BLOCK + 1, 10):
            piece = memory.empty((size,), torch.uint8)
            piece.fill_(7)

            assert lies_in_block(piece)

    def test_without_numbers_and_of_one(self) -> None:
        """Empty tensors and scalars."""
        memory = LargePages()

        assert [(0, 4), ()] == [tuple(memory.empty(shape, torch.float32).shape) for shape in ((0, 4), ())]

    def test_a_block_ends_with_its_tensors(self) -> None:
        """Nothing else holds it."""
        memory = LargePages()
        pieces = [memory.empty((9,), torch.uint8) for _ in range(2)]
        address = pieces[0].data_ptr()
        del memory, pieces[0]

        assert large_pages._lies_in_block(address)

        del pieces[0]

        assert not large_pages._lies_in_block(address)


@pytest.mark.usefixtures("_refused")
def test_a_system_without_them_gives_torchs_own() -> None:
    """Which is not to fail."""
    piece = LargePages().empty((3,), torch.float32)
    weight = torch.randn(4)
    values = weight.clone()
    move_to_large_pages([weight])

    assert not lies_in_block(piece)
    assert torch.equal(values, weight)


@needs_pages
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

        assert all(map(lies_in_block, tensors[:-1]))
        for tensor, (values, strides) in zip(tensors, before, strict=True):
            assert torch.equal(values, tensor)
            assert (values.dtype, strides) == (tensor.dtype, tensor.stride())

    def test_in_their_order(self) -> None:
        """Whatever their addresses were."""
        tensors = [torch.randn(size) for size in (33, 5, 100)]
        move_to_large_pages(tensors)

        assert [192, 64] == [tensors[n + 1].data_ptr() - tensors[n].data_ptr() for n in range(2)]

    def test_what_is_shared_stays_shared(self) -> None:
        """Views of one tensor, in whatever order they come, and tied parameters."""
        whole = nn.Parameter(torch.randn(8, 4))
        views, tied = [nn.Parameter(whole.data[4:]), nn.Parameter(whole.data[:4])], whole
        move_to_large_pages([*views, whole, tied])
        whole.data.fill_(2.0)

        assert all(bool((view == 2).all()) for view in views)

    def test_twice_moves_once(self) -> None:
        """What lies there stays."""
        old, new = torch.randn(9), torch.randn(9)
        move_to_large_pages([old])
        before = old.data_ptr()
        move_to_large_pages([old, new])

        assert before == old.data_ptr()
        assert lies_in_block(new)

    def test_others_stay(self) -> None:
        """Of other devices, and those that torch does not let change."""
        with torch.inference_mode():
            fixed = torch.randn(3)
        before = fixed.data_ptr()
        move_to_large_pages([torch.empty(3, device="meta"), fixed])

        assert before == fixed.data_ptr()

    def test_parameters_can_be_trained_afterwards(self) -> None:
        """Even where they were moved in inference mode."""
        weight = nn.Parameter(torch.ones(3))
        with torch.inference_mode():
            move_to_large_pages([weight])
        (weight * 2).sum().backward()

        assert [2.0] * 3 == weight.grad.tolist()

    def test_each_is_free_before_the_next_is_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So weights are in memory once, but for the largest."""
        tensors = [torch.randn(50) for _ in range(3)]
        old = [tensor.data_ptr() for tensor in tensors]
        left = []
        move = large_pages._move

        def watched(area: large_pages._Area, memory: LargePages) -> None:
            left.append(sum(tensor.data_ptr() in old for tensor in tensors))
            move(area, memory)

        monkeypatch.setattr(large_pages, "_move", watched)
        move_to_large_pages(tensors)

        assert [3, 2, 1] == left
        assert all(map(lies_in_block, tensors))


@needs_pages
@pytest.mark.slow
@needs_toolchain
class TestDecoders:
    def test_of_a_folder_lie_there_whole(self, tiny_model, tmp_path) -> None:
        """Compiled, cut, saved and loaded; loaded weights are read to there."""
        tiny_model("llama").save_pretrained(tmp_path / "model")
        decoder = compile_decoder(tmp_path / "model", target="cpu", max_length=32, widths=(1, 5))
        draft = decoder.early_exit(1, widths=(1, 5))
        decoder.save(tmp_path / "saved")
        loaded = load_decoder(tmp_path / "saved")
        ids, start = torch.tensor([[3]]), torch.tensor([0])

        for each in (decoder, draft, loaded):
            assert all(map(lies_in_block, each.step.parameters()))
        assert {weight.data_ptr() for weight in draft.step.parameters()} <= {
            weight.data_ptr() for weight in decoder.step.parameters()
        }
        assert torch.equal(decoder.forward(ids, start), loaded.forward(ids, start))

    def test_the_callers_weights_stay_where_they_are(self, tiny_model) -> None:
        """Those that were fused or quantised are the decoder's own."""
        model = tiny_model("llama")
        before = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        for weights in (None, "int8"):
            decoder = compile_decoder(model, target="cpu", max_length=32, widths=(1,), weights=weights)
            tensors = [*decoder.step.parameters(), *decoder.step.buffers()]
            own = [tensor for tensor in tensors if tensor.data_ptr() not in before]

            assert before == {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
            assert own
            assert all(map(lies_in_block, own))
