"""The decoder that users get: compiled, can be saved, pushed to the hub, linted, cut for early exit."""

import logging
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..decoding.protocols import Processor, Sampler
from ..decoding.results.html import summary_table
from ..decoding.validation import as_tuple
from .lint.graph_lint import lint_graph
from .lint.rules import Finding
from .lowering.step_graphs import lower_step, program_shapes
from .models.early_exit import first_layers
from .models.tokenizer_source import load_tokenizer
from .on_device_sampling.pipeline_validation import check_rows, validate_pipeline
from .parity.compare import probe_of
from .parity.logits_probe import Probe
from .program_facts import all_bit_exact, any_skips_padding, kernels_of
from .progress_option import ProgressOption, progress_of
from .row_steps import RowStep
from .serialization.hub import push_decoder
from .serialization.saving import save_decoder
from .static_decoder import StaticDecoder
from .step import DecoderStep, TreeStep
from .targets.eager_target import EagerTarget
from .targets.registry import resolve
from .targets.target import Target, copies_by_program, serves_rows, serves_rows_unasked
from .tensor_parallel.cores import ranks_or_cores
from .tensor_parallel.lost_ranks import report_lost_ranks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_log = logging.getLogger(__name__)


class CompiledDecoder(StaticDecoder):
    """
    The result of :func:`~decodekit.neuron_backend.compile_decoder` and ``load_decoder``.

    A :class:`~.static_decoder.StaticDecoder` that can be saved, pushed to the hub, cut to its first layers,
    and linted for what Neuron's compiler would refuse.
    """

    compiler: Target = EagerTarget()
    """The target that made the programs."""

    source: str | PathLike[str] | None = None
    """The folder, GGUF file or hub id that it was made from or loaded from; None for a model in memory."""

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """
        The tokenizer of :attr:`source`, loaded when it is first used; None if it has none.

        Raises:
            OSError: It cannot be read.

            ValueError: Its files do not make a tokenizer.

            ImportError: It needs a package that is not installed.
        """
        return None if self.source is None else load_tokenizer(self.source)

    @property
    def kernels(self) -> str:
        """Kernels of the programs, such as ``"own kernels (AVX-512, VNNI, BF16)"``."""
        others = "torch's eager kernels" if self.target == EagerTarget.name else "kernels not known"
        named: dict[str, Any] = {f"{DecoderStep.kind}_{width}": one for width, one in self.programs.items()}
        named |= {f"{TreeStep.kind}_{width}": one for width, one in self.tree_programs.items()}
        named |= {f"{RowStep.kind}_{width}": programs[0] for width, programs in self.row_programs.items()}
        return kernels_of(named, others)

    @property
    def bit_exact(self) -> bool:
        """
        Whether it is proved that a column's logits are the same bits at every width, batch and span.

        Then speculation, batches, chunks and reused prefixes give the tokens of plain decoding. False where
        it is not proved: in eager decoders, on other targets than the CPU, with kernels of torch's, and in
        models that several processes share, whose sums may depend on the number of columns.
        """
        rows = (programs[0] for programs in self.row_programs.values())
        programs = (
            *self.programs.values(),
            *self.tree_programs.values(),
            *self.fused_programs.values(),
            *rows,
        )
        return self.ranks is None and all_bit_exact(programs)

    @property
    def skips_padding(self) -> bool:
        """Whether a forward takes less time the more of its columns are padding."""
        return any_skips_padding(self.programs.values())

    def __repr__(self) -> str:
        """Target, shape and kernels; the model is not built for it."""
        shape = self.shape
        return (
            f"<{type(self).__name__} for {self.target}: batch_size={shape.batch_size}, "
            f"max_length={shape.max_length}, widths={shape.widths}, {self.kernels}>"
        )

    def _repr_html_(self) -> str:
        """What the line says, as a table."""
        shape = self.shape
        fields = {
            "target": self.target,
            "batch_size": shape.batch_size,
            "max_length": shape.max_length,
            "widths": shape.widths,
            "kernels": self.kernels,
        }
        return summary_table(type(self).__name__, fields)

    def compile(
        self,
        compiler: Target,
        processors: Processor | None,
        sampler: Sampler | None,
        copies_rows: bool | None = None,
    ) -> None:
        """
        Compile the programs with *compiler*, including sampling if *processors* or *sampler* is given.

        Raises:
            UnsupportedArchitecture: The programs' logits differ from the stock model's.
        """
        if processors is not None or sampler is not None:
            self.fuse(processors, sampler)
        self.offer_copies(compiler, copies_rows)
        compiler.compile(self)

    def offer_copies(self, target: Target, wanted: bool | None) -> None:
        """Offer copies of rows if they are *wanted*, or if None where *target* needs no program for them."""
        self.copies_by_program = copies_by_program(target)
        self.copies_rows = serves_rows_unasked(target) if wanted is None else wanted

    def save(self, folder: str | PathLike[str], tokenizer: "PreTrainedTokenizerBase | None" = None) -> None:
        """
        Save everything that :func:`~decodekit.neuron_backend.load_decoder` needs into *folder*.

        Args:
            folder: New, empty, or a saved decoder, which is replaced as a whole.

            tokenizer: Saved with the model. None: :attr:`tokenizer`, if there is one and it can be loaded.

        Raises:
            ValueError: *folder* has other contents.
        """
        save_decoder(self, folder, self._tokenizer_to_save(tokenizer))

    def push_to_hub(
        self,
        repo_id: str,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        private: bool | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        commit_message: str | None = None,
    ) -> str:
        """
        Save into a repository of the Hugging Face hub, for ``load_decoder(repo_id)``.

        Files of the same names are replaced, in one commit. A model card is written if the repository has
        none.

        Args:
            repo_id: ``"user/name"``; created if it does not exist.

            tokenizer: As for :meth:`save`.

            private: Whether a created repository is private. None: the account's default.

            revision: Branch; created if it does not exist. None: the main branch.

            token: Access token. None: that of the logged-in user.

            commit_message: None: a message with the version of decodekit.

        Returns:
            URL of the commit.

        Raises:
            ValueError: *repo_id* is not a repository id.
        """
        return push_decoder(
            self,
            repo_id,
            self._tokenizer_to_save(tokenizer),
            private=private,
            revision=revision,
            token=token,
            commit_message=commit_message,
        )

    def early_exit(
        self,
        num_layers: int,
        *,
        widths: Sequence[int] | None = None,
        scored_width: int | None = None,
        processors: Processor | None = None,
        sampler: Sampler | None = None,
        target: str | Target | None = None,
        progress: ProgressOption = None,
    ) -> "CompiledDecoder":
        """
        A draft decoder from the first *num_layers* layers, the final norm and the head.

        It shares the weights, has its own cache, and has the batch size and positions of this decoder, and
        like it programs of one row and copies of rows:
        ``DraftModel(target.early_exit(4))``. The acceptance rate depends on the model: models not trained
        for early exit draft poorly from early layers; a draft from all layers is always right.

        Elhoushi et al., 2024, `LayerSkip: Enabling Early Exit Inference and Self-Speculative
        Decoding <https://arxiv.org/abs/2404.16710>`_. There the target continues from the draft's hidden
        states and cache; here it scores the draft tokens with all of its layers, as for any draft.

        Args:
            num_layers: Layers to keep, from 1 to all.

            widths: Columns of the forwards, ascending. None: what drafting needs: 1, 2 (a token that was
                not fed yet and the newest), and this decoder's widest for prompts.

            scored_width: None: the smallest of *widths*, sufficient for drafting.

            processors: The target's processors, to sample draft tokens on the device, as in
                :func:`~decodekit.neuron_backend.compile_decoder`.

            sampler: The target's sampler, likewise.

            target: As for :func:`~decodekit.neuron_backend.compile_decoder`. None: this
                decoder's.

            progress: As for :func:`~decodekit.neuron_backend.compile_decoder`.

        Raises:
            UnsupportedArchitecture: The model cannot be cut.

            ValueError: An argument is invalid.
        """
        if widths is None:
            widest = self.shape.widths[-1]
            widths = sorted({min(width, widest) for width in (1, 2, widest)})
        widths = as_tuple("widths", widths)
        compiler, told = self.compiler if target is None else resolve(target), progress_of(progress)
        validate_pipeline(processors, sampler)
        check_rows(processors, self.shape.batch_size)
        compiler.require()
        ranks, cores = ranks_or_cores(compiler, self.tp_degree)
        with report_lost_ranks(ranks):
            if ranks is not None:
                shape = (num_layers, widths, scored_width, compiler.name)
                ranks.check_call(shape, processors is None, sampler is None)
            decoder = CompiledDecoder(
                first_layers(self.step.model, num_layers),
                batch_size=self.shape.batch_size,
                max_length=self.shape.max_length,
                widths=widths,
                scored_width=min(widths, default=1) if scored_width is None else scored_width,
                spans=self.spans,
                progress=told,
            )
            decoder.cores, decoder.source = cores, self.source
            # Programs of single rows, where they take minutes to compile, only if this decoder has some.
            rows = serves_rows_unasked(compiler) or (
                serves_rows(compiler) and copies_by_program(self.compiler) and self.shape.batch_size > 1
            )
            decoder.offer_rows([width for width in self.row_widths if width in widths] if rows else ())
            decoder.compile(compiler, processors, sampler, rows and self.copies_rows)
        return decoder

    def lint(self) -> dict[str, list[Finding]]:
        """
        What Neuron's compiler is known to refuse of this decoder, whatever its target.

        Requires neither a device nor Neuron's packages, and takes some seconds per program. No finding is no
        proof that it compiles: see :mod:`.lint.graph_lint`.

        Returns:
            Findings by program name, such as ``"width_5_span_128"``, for each width and span that
            :class:`~.targets.neuron.native_target.NativeTarget` would compile, and for the decoder's
            programs of single rows.
        """
        return {
            program.name: lint_graph(lower_step(program.step, program.width, self.cache, program.span))
            for program in program_shapes(self)
        }

    def _tokenizer_to_save(self, given: "PreTrainedTokenizerBase | None") -> "PreTrainedTokenizerBase | None":
        if given is not None:
            return given
        try:
            return self.tokenizer
        except (OSError, ValueError, ImportError) as error:
            # The programs took minutes to compile: they are saved without it.
            _log.warning("the tokenizer of %s is not saved: it cannot be loaded: %s", self.source, error)
            return None

    def probe(self) -> Probe:
        """The probe that compares logits with the stock model, at this decoder's shape."""
        return probe_of(self)
