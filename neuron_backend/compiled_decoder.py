"""A decoder as users have it: compiled, saved, pushed to the hub, cut to its first layers."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from ..decoding.protocols import Processor, Sampler
from ..decoding.validation import as_tuple
from .lint.rules import Finding
from .lowering.step_graphs import lint_decoder
from .models.early_exit import first_layers
from .on_device_sampling.validate_pipeline import check_rows, validate_pipeline
from .parity.compare import probe_of
from .parity.logits_probe import Probe
from .serialization.hub import push_decoder
from .serialization.saving import save_decoder
from .static_decoder import StaticDecoder
from .targets.eager_target import EagerTarget
from .targets.registry import resolve
from .targets.target import Target
from .tensor_parallel.cores import holders
from .tensor_parallel.ranks import naming_lost_ranks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CompiledDecoder(StaticDecoder):
    """
    What :func:`~decodekit.neuron_backend.compile_decoder` and ``load_decoder`` give.

    A :class:`~.static_decoder.StaticDecoder` that can be saved, pushed to the hub, cut to its
    first layers, and looked at for what Neuron's compiler would refuse.
    """

    compiler: Target = EagerTarget()
    """What made the programs."""

    def compile(self, compiler: Target, processors: Processor | None, sampler: Sampler | None) -> None:
        """
        Let *compiler* make the programs, with a choice behind the forwards if one is asked for.

        Raises:
            UnsupportedArchitecture: The programs do not give the stock model's logits.
        """
        if processors is not None or sampler is not None:
            self.fuse(processors, sampler)
        compiler.compile(self)

    def save(self, folder: str | PathLike[str], tokenizer: "PreTrainedTokenizerBase | None" = None) -> None:
        """
        Write everything that :func:`~decodekit.neuron_backend.load_decoder` needs into *folder*.

        Args:
            folder: New, empty, or a decoder saved before, which is replaced as a whole.

            tokenizer: Saved beside the model.

        Raises:
            ValueError: *folder* holds something else.
        """
        save_decoder(self, folder, tokenizer)

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

        What is there of the same names is replaced, in one commit. A card is written if the
        repository has none.

        Args:
            repo_id: ``"user/name"``. It is made if it is not there.

            tokenizer: Saved beside the model.

            private: Whether a repository that is made is. None: as the account's default is.

            revision: The branch, made if it is not there. None: the main one.

            token: None: the one that is logged in.

            commit_message: None: one that names the version of decodekit.

        Returns:
            The commit's address.

        Raises:
            ValueError: *repo_id* is none.
        """
        return push_decoder(
            self,
            repo_id,
            tokenizer,
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
    ) -> "CompiledDecoder":
        """
        The first *num_layers* layers, the final norm and the head, as a decoder that can draft.

        It has these weights, shared, a cache of its own, and the rows and positions of this
        decoder: ``DraftModel(target.early_exit(4))``. How often such a draft is right is up to
        the model. One that was not trained to be left early rarely says anything useful before
        its last layers; all layers together are always right.

        Elhoushi et al., 2024, `LayerSkip: Enabling Early Exit Inference and Self-Speculative
        Decoding <https://arxiv.org/abs/2404.16710>`_. There the target goes on from
        the draft's hidden states and cache; here it scores the draft with all of its layers, as
        any other.

        Args:
            num_layers: How many to keep, 1 up to all of them.

            widths: Columns of the forwards, ascending. None: what a draft needs: 1, 2 (a token
                that it missed and the newest), and this decoder's widest for prompts.

            scored_width: None: the smallest of *widths*, all that a draft needs.

            processors: The target's, for a draft that chooses in its own forwards: as for
                :func:`~decodekit.neuron_backend.compile_decoder`.

            sampler: The target's, likewise.

            target: As for :func:`~decodekit.neuron_backend.compile_decoder`. None: this
                decoder's.

        Raises:
            UnsupportedArchitecture: The model cannot be cut.

            ValueError: An argument breaks its rule.
        """
        if widths is None:
            widest = self.shape.widths[-1]
            widths = sorted({min(width, widest) for width in (1, 2, widest)})
        widths = as_tuple("widths", widths)
        compiler = self.compiler if target is None else resolve(target)
        validate_pipeline(processors, sampler)
        check_rows(processors, self.shape.batch_size)
        compiler.require()
        ranks, cores = holders(compiler, self.tp_degree)
        with naming_lost_ranks(ranks):
            if ranks is not None:
                asked = (num_layers, widths, scored_width, compiler.name)
                ranks.check_call(asked, processors is None, sampler is None)
            decoder = CompiledDecoder(
                first_layers(self.step.model, num_layers),
                batch_size=self.shape.batch_size,
                max_length=self.shape.max_length,
                widths=widths,
                scored_width=min(widths, default=1) if scored_width is None else scored_width,
                spans=self.spans,
            )
            decoder.cores = cores
            decoder.compile(compiler, processors, sampler)
        return decoder

    def lint(self) -> dict[str, list[Finding]]:
        """
        What Neuron's compiler is known to refuse of this decoder, whatever it was compiled for.

        It takes neither a device nor Neuron's packages, and some seconds a program. Nothing found
        does not mean that it compiles: see :mod:`.lint.graph_lint`.

        Returns:
            Findings by the name of the program, such as ``"width_5_span_128"``: each width and
            span that :class:`~.targets.neuron.native_target.NativeTarget` would compile.
        """
        return lint_decoder(self)

    def probe(self) -> Probe:
        """The comparison with the stock model, at this decoder's shape."""
        return probe_of(self)
