"""Trees scored in one forward: layout, step, comparison with token sequences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import Draft, Slots
from decodekit.neuron_backend import (
    StaticDecoder,
    UnsupportedArchitecture,
    compile_decoder,
    lint_graph,
    load_decoder,
    static_decoder as static_decoder_module,
)
from decodekit.neuron_backend.artifacts.fingerprint import ModelFingerprint, program_fingerprint
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.kv_cache.buffers import CacheBuffers
from decodekit.neuron_backend.kv_cache.geometry import Geometry
from decodekit.neuron_backend.kv_cache.masks import MaskPlan, Reach
from decodekit.neuron_backend.kv_cache.tree_layout import lay_out_tree
from decodekit.neuron_backend.lowering.step_graphs import lower_step
from decodekit.neuron_backend.parity.tree_probe import TreeProbe
from decodekit.testing import check_decoder

from ..histories import history_of_rows

Models = Callable[..., PreTrainedModel]

# 0 - 1 - 4        in the first row; a chain of two in the second
#   \ 2 - 3
# 5
IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, -1, -1, -1, -1]])
PARENTS = torch.tensor([[-1, 0, 0, 2, 1, -1], [-1, 0, -1, -1, -1, -1]])
PATHS = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4], [5]]


def eager(model: PreTrainedModel, **options: object) -> StaticDecoder:
    """Two rows, and trees of two widths."""
    return StaticDecoder(model, batch_size=2, max_length=48, widths=(1, 5), tree_widths=(2, 6), **options)


def prefixes() -> Tensor:
    """Two rows of 30 tokens, none of them in IDS: longer than any sliding window here."""
    return torch.randint(10, 61, (2, 30), generator=torch.Generator().manual_seed(5))


def fed(decoder: StaticDecoder) -> StaticDecoder:
    """Feed the prefix up to position 29, overwriting the cache."""
    for start in range(0, 30, 5):
        decoder.forward(prefixes()[:, start : start + 5], torch.tensor([start, start]))
    return decoder


class TestLayOut:
    def test_the_first_branch_goes_where_its_positions_are(self) -> None:
        """Every other column is written to its own scratch slot, padding too."""
        positions, written, path = lay_out_tree(IDS, torch.tensor([3, 10]), PARENTS)

        assert [[3, 4, 4, 5, 5, 3], [10, 11, 0, 0, 0, 0]] == positions.tolist()
        assert [[3, 4, -4, -5, 5, -7], [10, 11, -4, -5, -6, -7]] == written.tolist()
        assert PATHS == [row.nonzero().flatten().tolist() for row in path[0]]


class TestTreeMask:
    @pytest.mark.parametrize(
        ("reach", "expected"),
        [
            pytest.param(Reach(), [[0, 1, 2, 3], [-2, 0, 1, 2, 3]], id="everything-before-and-its-path"),
            pytest.param(Reach(window=3), [[1, 2, 3], [-2, 2, 3]], id="a-window-by-position"),
            pytest.param(Reach(window=1), [[3], [-2]], id="itself-alone"),
            pytest.param(Reach(chunk=4), [[0, 1, 2, 3], [-2]], id="a-chunk-by-position"),
        ],
    )
    def test_is_what_a_column_sees(self, reach: Reach, expected: list[list[int]]) -> None:
        """A root at position 3, and a child of it in a scratch slot."""
        path = torch.tensor([[[True, False], [True, True]]])
        slots = torch.arange(-3, 8)
        at, written = torch.tensor([[3, 4]]), torch.tensor([[3, -2]])
        sees = reach.tree_sees(at, written, path, slots, torch.float32)

        assert (1, 2, 11) == tuple(sees.shape)
        assert expected == [slots[row].tolist() for row in sees[0]]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2", "mixtral"])
class TestModels:
    @pytest.mark.mostly_slow(every=5)
    def test_keep_the_contract(self, name: str, tiny_model: Models) -> None:
        """Random trees, up to the last position, in batches of one and of three."""
        for rows in (1, 3):
            check_decoder(
                StaticDecoder(
                    tiny_model(name), batch_size=rows, max_length=40, widths=(1, 4, 12), tree_widths=(3, 11)
                )
            )

    def test_score_the_tree_as_its_paths(self, name: str, tiny_model: Models) -> None:
        """In float64, column by column against a decoder without trees."""
        model = tiny_model(name, torch.float64)
        decoder = fed(eager(model))
        logits = decoder.forward_tree(IDS, torch.tensor([30, 30]), PARENTS)
        plain = StaticDecoder(model, batch_size=2, max_length=48, widths=(1, 5))
        for column, path in enumerate(PATHS):
            fed(plain)
            for position, token in enumerate(IDS[0, path].tolist()):
                chain = plain.forward(torch.tensor([[token], [-1]]), torch.tensor([30 + position, 0]))
            torch.testing.assert_close(chain[0, 0], logits[0, column], atol=2e-6, rtol=2e-6)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_slots_without_a_token_weigh_nothing(self, name: str, dtype: str, tiny_model: Models) -> None:
        """Garbage after the rows, in every scratch slot and in the spare one changes no bit."""
        clean, dirty = (fed(eager(tiny_model(name), dtype=dtype)) for _ in range(2))
        start = torch.tensor([30, 28])
        for buffer in dirty.cache.tensors:
            reserved = dirty.cache.reserved
            buffer[:, :, :reserved] = 1e9
            buffer[0, :, reserved + 30 :] = 1e9
            buffer[1, :, reserved + 28 :] = 1e9
        expected, found = (decoder.forward_tree(IDS, start, PARENTS) for decoder in (clean, dirty))

        assert torch.equal(expected[IDS >= 0], found[IDS >= 0])

    def test_leave_the_first_branch_alone(self, name: str, tiny_model: Models) -> None:
        """Only the first branch's own positions are written, and none of an idle row."""
        decoder = fed(eager(tiny_model(name)))
        reserved = decoder.cache.reserved
        before = [buffer[:, :, reserved:].clone() for buffer in decoder.cache.states]
        ids = IDS.clone()
        ids[1] = -1
        decoder.forward_tree(ids, torch.tensor([20, 20]), PARENTS)
        for old, new in zip(before, decoder.cache.states, strict=True):
            changed = (old != new[:, :, reserved:]).any(dim=-1).any(dim=1)

            assert [20, 21, 22] == changed[0].nonzero().flatten().tolist()
            assert not changed[1].any()


class TestStaticDecoder:
    def test_without_trees_is_what_it_was(self, llama: StaticDecoder) -> None:
        """No scratch slots, no programs, and a tree is refused."""
        assert ((), {}, 1) == (llama.tree_widths, llama.tree_programs, llama.cache.reserved)
        with pytest.raises(ValueError, match=r"as wide as one of \(\): got 6"):
            llama.forward_tree(IDS, torch.tensor([0, 0]), PARENTS)

    @pytest.mark.parametrize("widths", [(0,), (5, 2)])
    def test_refuses_widths_that_are_none(self, widths: tuple[int, ...], tiny_model: Models) -> None:
        """Positive and ascending."""
        with pytest.raises(ValueError, match="'tree_widths' must be positive and ascending"):
            StaticDecoder(tiny_model("llama"), max_length=16, widths=(1,), tree_widths=widths)

    def test_refuses_more_scratch_slots_than_positions(self, tiny_model: Models) -> None:
        """Each column needs a scratch slot; the message gives the limit."""
        tall: dict[str, Any] = {"max_length": 16, "widths": (1,)}
        StaticDecoder(tiny_model("llama"), tree_widths=(2, 16), **tall)
        with pytest.raises(ValueError, match=r"'tree_widths' must be <= max_length = 16.*: got \(2, 17\)"):
            StaticDecoder(tiny_model("llama"), tree_widths=(2, 17), **tall)

    def test_slots_feed_its_trees(self, tiny_model: Models) -> None:
        """After a side branch is accepted, logits are as if there had been no tree."""
        decoder = eager(tiny_model("gemma2"))
        slots, history = Slots(decoder), history_of_rows(prefixes().tolist())
        draft = Draft(torch.tensor([[1, 2, 3], [4, -1, -1]]), parents=torch.tensor([[-1, -1, 1], [-1, 0, 0]]))
        tree = slots.feed_tree(history, history.length[:, 0], draft, torch.ones(2, dtype=torch.bool)).clone()
        history.ids[0, 0, 30:32], history.ids[1, 0, 30] = torch.tensor([2, 3]), 4
        chain = slots.feed(history, torch.tensor([32, 31]), torch.tensor([3, 2])).logits.clone()

        torch.testing.assert_close(chain[0], tree[0, [0, 2, 3]], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(chain[1, :2], tree[1, :2], atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("name", ["llama", "gemma2"])
    def test_the_step_breaks_no_rule_of_neuron(self, name: str, tiny_model: Models) -> None:
        """It lowers to a graph in which the lint finds nothing."""
        decoder = eager(tiny_model(name))

        assert [] == lint_graph(lower_step(decoder.tree_step, 6, decoder.cache, 48))


class TestRefusal:
    @pytest.mark.parametrize("max_length", [1, 2, 9, 40])
    @pytest.mark.parametrize("batch_size", [1, 5])
    def test_of_nothing_that_is_right(self, max_length: int, batch_size: int, tiny_model: Models) -> None:
        """Short caches, and trees as wide as a row is long, can be compared too."""
        StaticDecoder(
            tiny_model("mistral"),
            batch_size=batch_size,
            max_length=max_length,
            widths=(1,),
            tree_widths=[width for width in (1, 2, 9, 30) if width <= max_length],
        )

    @pytest.mark.parametrize("window", [15, 17])
    def test_of_a_window_that_is_one_off(
        self, window: int, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If only trees are wrong and sequences are right."""
        wrong = Reach(window=window)
        right = MaskPlan.tree_masks
        monkeypatch.setattr(MaskPlan, "tree_masks", lambda self, *tree: right(MaskPlan({"": wrong}), *tree))

        with pytest.raises(UnsupportedArchitecture, match=r"MistralForCausalLM .* scores a tree of width 6"):
            StaticDecoder(tiny_model("mistral"), max_length=40, widths=(1, 4), tree_widths=(6,))

    def test_is_of_rows_longer_than_any_window(self, tiny_model: Models) -> None:
        """Unless the window is longer than a row, which is full attention."""
        decoder = eager(tiny_model("llama"))

        assert [46, 40, 40] == [int(TreeProbe.of(decoder, 6, span).length.max()) for span in (40, 0, 48)]

    @pytest.mark.parametrize("fault", ["sees all", "leaves nothing", "wrong positions"])
    def test_of_a_tree_that_is_none(
        self, fault: str, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Columns that attend to siblings, a first branch in scratch slots, positions by column index."""

        def wrong(ids: Tensor, *args: object) -> tuple[Tensor, Tensor, Tensor]:
            positions, slots, path = lay_out_tree(ids, *args)  # type: ignore[arg-type]
            columns = torch.arange(ids.shape[1])
            if fault == "sees all":
                return positions, slots, torch.ones_like(path).tril()
            if fault == "leaves nothing":
                return positions, (-2 - columns).expand_as(slots), path
            return (positions[:, :1] + columns).clamp(max=39), slots, path

        monkeypatch.setattr(static_decoder_module, "lay_out_tree", wrong)
        with pytest.raises(UnsupportedArchitecture, match="scores a tree of width 6 otherwise"):
            StaticDecoder(tiny_model("llama"), max_length=40, widths=(1, 4), tree_widths=(6,))

    def test_of_what_raises(self, tiny_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        """Named, with the cause chained."""
        monkeypatch.setattr(static_decoder_module, "lay_out_tree", None)
        with pytest.raises(UnsupportedArchitecture, match="failed over a tree of width 6") as caught:
            StaticDecoder(tiny_model("llama"), max_length=40, widths=(1, 4), tree_widths=(6,))

        assert isinstance(caught.value.__cause__, TypeError)


@pytest.fixture(scope="module")
def compiled(tiny_model: Models) -> StaticDecoder:
    """One program for sequences, one for trees, of a model with two layer types."""
    return compile_decoder(
        tiny_model("gemma2"), batch_size=2, max_length=48, widths=(2,), tree_widths=(6,), target="cpu"
    )


def script(decoder: StaticDecoder) -> list[Tensor]:
    """Logits of a prefix, a tree after it, and a step after that."""
    start = torch.tensor([30, 30])
    for first in range(0, 30, 2):
        logits = decoder.forward(prefixes()[:, first : first + 2], torch.tensor([first, first]))
    found = [logits.clone(), decoder.forward_tree(IDS, start, PARENTS).clone()]
    found[1][1, 2:] = 0
    return [*found, decoder.forward(torch.tensor([[9, -1], [9, -1]]), start + 2)[:, :1].clone()]


@pytest.mark.slow
class TestCompiled:
    def test_keeps_the_contract(self, compiled: StaticDecoder) -> None:
        """As the eager decoder, with the same logits."""
        check_decoder(compiled)
        expected = StaticDecoder(
            compiled.step.model, batch_size=2, max_length=48, widths=(2,), tree_widths=(6,)
        )
        for one, other in zip(script(expected), script(compiled), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)

    def test_slots_without_a_token_weigh_nothing(self, compiled: StaticDecoder) -> None:
        """Garbage after the rows and in every scratch slot changes no bit."""
        expected = script(compiled)[1]
        reserved = compiled.cache.reserved
        for buffer in compiled.cache.tensors:
            buffer[:, :, :reserved] = 1e9
            buffer[:, :, reserved + 30 :] = 1e9
        found = compiled.forward_tree(IDS, torch.tensor([30, 30]), PARENTS)

        assert torch.equal(expected[IDS >= 0], found[IDS >= 0])

    def test_no_forward_compiles(self, compiled: StaticDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
        """No compiler runs after construction, whatever the tree."""
        monkeypatch.setattr(torch.export, "export", None)
        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", None)
        monkeypatch.setenv("PATH", "/nonexistent")
        for parents in (PARENTS, torch.full_like(PARENTS, -1), torch.arange(-1, 5).expand(2, -1)):
            assert compiled.forward_tree(IDS, torch.tensor([0, 9]), parents)[IDS >= 0].isfinite().all()

    def test_is_saved_with_its_trees(
        self, compiled: StaticDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And loaded without a compiler, with the same bits."""
        compiled.save(tmp_path / "decoder")
        monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.aoti.compile_package", None)
        loaded = load_decoder(tmp_path / "decoder")

        assert {"tree_6.zip", "width_2.zip"} == {
            path.name for path in (tmp_path / "decoder/programs").iterdir()
        }
        assert ((6,), False) == (loaded.tree_widths, loaded.compiled)
        assert all(map(torch.equal, script(compiled), script(loaded)))

    def test_its_programs_fit_no_decoder_without_trees(self, compiled: StaticDecoder, tmp_path: Path) -> None:
        """Nor one with other scratch slots: the cache has another shape."""
        compiled.save(tmp_path / "decoder")
        facts = attrs.asdict(manifest := Manifest.read(tmp_path / "decoder"), recurse=False)
        assert [6] == manifest.tree_widths
        Manifest(**{**facts, "tree_widths": []}).write(tmp_path / "decoder")

        with pytest.raises(ValueError, match="a program must have been compiled for the decoder's shape"):
            load_decoder(tmp_path / "decoder")


def test_the_fingerprint_tells_programs_apart(llama: StaticDecoder) -> None:
    """By what they score, at which width, over which spans and with how many reserved slots."""
    geometry, model = Geometry.of(llama.step.model), ModelFingerprint.of(llama.step)
    plain, scratch = (CacheBuffers.zeros(geometry, 2, 64, scratch) for scratch in (0, 4))
    digests = {
        program_fingerprint(model, "width", llama.shape, 5, (64,), plain),
        program_fingerprint(model, "width", llama.shape, 5, (64,), scratch),
        program_fingerprint(model, "width", llama.shape, 5, (32, 64), plain),
        program_fingerprint(model, "width", llama.shape, 1, (64,), plain),
        program_fingerprint(model, "tree", llama.shape, 5, (64,), scratch),
    }

    assert 5 == len(digests)
