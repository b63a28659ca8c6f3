"""A decoder as a model of Hugging Face transformers, for its ``generate`` and its pipelines."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..cache.slots import feeder_of
from ..engine.compatibility import check_decoder
from ..optional_protocols import DescribesModel, reads_prompts
from ..protocols import Decoder
from .cache_name import CACHE
from .forward_arguments import (
    cache_of,
    check_ids,
    check_positions,
    columns_kept,
    given_cache,
    ids_of,
    shown_by,
)
from .last_logits import check_rows, last_logits
from .refused_options import refuse_arguments, refuse_fields
from .token_cache import TokenCache

# The mixin is annotated for transformers' own models.
_Mixin: Any = GenerationMixin

_FROM_THE_TOKENIZER = ("bos_token_id", "eos_token_id", "pad_token_id")


class TransformersModel(_Mixin):  # type: ignore[misc]
    """
    *decoder* as a causal LM of transformers: ``TransformersModel(decoder).generate(input_ids, ...)``.

    transformers' own ``generate`` runs, with all that it does from logits: sampling, beams, prompt lookup,
    ``assistant_model`` (of either kind), guidance, scores, streamers, stopping criteria, chunked prefill;
    likewise ``pipeline("text-generation", model=..., tokenizer=..., device="cpu")``. Prompts are padded on
    the left, with an ``attention_mask``; padding is not fed. The decoder needs a row for each prompt, times
    ``num_beams`` or ``num_return_sequences``. A row goes where most of it is cached, or is copied from
    there: a step of beams feeds one token a beam, and with a second row for each prompt ``guidance_scale``
    feeds neither of its two texts twice.

    Hidden states, attentions and embeddings are refused: a decoder gives logits. For speculation whose
    text equals plain decoding's, requests, and log-probabilities use a
    :class:`~..generator.Generator`.
    """

    main_input_name = "input_ids"
    input_modalities = ("text",)
    base_model_prefix = ""
    device = torch.device("cpu")
    """Where ids are taken and logits are given, whatever the decoder runs on."""

    dtype = torch.float32
    """That of the logits."""

    _is_stateful = False

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Any = None,
        *,
        config: Any = None,
        generation_config: Any = None,
    ) -> None:
        """
        Wrap *decoder*, which others may use too.

        Args:
            decoder: Any decoder.

            tokenizer: ``generate`` takes it where it needs one, for ``stop_strings`` or an assistant of
                another vocabulary; its start, end and padding tokens are those of ``generate`` where the
                generation config has none.

            config: The model's ``PretrainedConfig``. None: that of the model that the decoder was made
                from, or else one of the decoder's sizes.

            generation_config: The defaults of ``generate``, a ``GenerationConfig``. None: those of the model
                that the decoder was made from, or else transformers' own.

        Raises:
            TypeError: *decoder* is none, or *config* or *generation_config* is of another type.

            ValueError: *decoder* is guided: its logits depend on where the prompt ends, which a model is not
                told.

            ImportError: transformers is too old.
        """
        check_decoder(decoder)
        if reads_prompts(feeder_of(decoder)):
            raise ValueError(
                "'decoder' must give logits that follow from a row's tokens alone. Wrap the decoder that is "
                f"guided, and use generate(guidance_scale=..., negative_prompt_ids=...): got {decoder!r}"
            )
        if "next_sequence_length" not in inspect.signature(super().prepare_inputs_for_generation).parameters:
            raise ImportError("TransformersModel needs a newer transformers, such as 5.23")
        self.decoder = decoder
        self.tokenizer = tokenizer
        self._feeder = feeder_of(decoder)
        if config is None or generation_config is None:
            # Asked only then: a loaded decoder builds its model for this.
            known = decoder if isinstance(decoder, DescribesModel) else None
            if config is None:
                config = _config_of_sizes(decoder) if known is None else known.model_config
            if generation_config is None:
                generation_config = _generation_defaults() if known is None else known.generation_config
        _require("config", config, PretrainedConfig)
        _require("generation_config", generation_config, GenerationConfig)
        self.config = config
        self.generation_config = _with_tokens(generation_config, tokenizer)

    def __repr__(self) -> str:
        """The decoder."""
        return f"{type(self).__name__}({self.decoder!r})"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """See :meth:`forward`."""
        return self.forward(*args, **options)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: TokenCache | None = None,
        *,
        cache: TokenCache | None = None,
        logits_to_keep: int = 0,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """
        Compute the logits of the successors of *input_ids*.

        Args:
            input_ids: ``[rows, columns]``, the columns after those of the cache.

            attention_mask: ``[rows, all columns]``, those of the cache included; 0 for padding, which is
                not fed. None: no padding.

            position_ids: ``[rows, columns]``; must be those that follow from the mask.

            past_key_values: The cache that an earlier call returned.

            cache: The same, by its name since transformers 5.24.

            logits_to_keep: The number of last columns to score; 0 for all of *input_ids*.

            use_cache: Whether to return the cache.

            return_dict: False for a tuple.

        Returns:
            ``CausalLMOutputWithPast``: ``logits`` ``[rows, columns to keep, vocab]`` float32, 0 at padding;
            and the cache, as ``cache`` since transformers 5.24 and as ``past_key_values`` before.

        Raises:
            TypeError: An argument of another type.

            ValueError: A wrong shape, an id outside the vocabulary that is not padding, more rows than the
                decoder has, a row longer than its positions, or positions other than the mask's.
        """
        given = given_cache(cache, past_key_values)
        record = cache_of(given)
        new = ids_of(input_ids)
        ids = record.with_columns(new)
        seen = shown_by(attention_mask, ids)
        columns = new.shape[1]
        check_ids(ids[seen], self._feeder.shape.vocab_size)
        check_positions(position_ids, seen, columns)
        keep = columns_kept(logits_to_keep, columns)
        kept = seen[:, -keep:]
        rows = [row[mask] for row, mask in zip(ids, seen, strict=True)]
        scored = last_logits(self._feeder, rows, kept.sum(dim=1).tolist())
        logits = torch.zeros(*kept.shape, self._feeder.shape.vocab_size)
        logits[kept] = torch.cat(scored)
        record.ids = ids
        returned: Any = None if use_cache is False and given is None else record
        output = CausalLMOutputWithPast(logits=logits, **{CACHE: returned})
        return output.to_tuple() if return_dict is False else output

    def generate(self, *args: Any, **options: Any) -> Any:
        """``GenerationMixin.generate``, with :attr:`tokenizer` where none is given."""
        if self.tokenizer is not None:
            options.setdefault("tokenizer", self.tokenizer)
        return super().generate(*args, **options)

    def generate_batch(self, *args: Any, **options: Any) -> Any:
        """Continuous batching, which needs the model's attention: refused."""
        raise NotImplementedError(
            "a decoder cannot run transformers' continuous batching: use decodekit.decoding.Batcher"
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: TokenCache | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: TokenCache | None = None,
        logits_to_keep: int = 1,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The arguments of :meth:`forward`; what ``generate`` passes besides was checked."""
        if next_sequence_length is not None:
            input_ids = input_ids[:, -next_sequence_length:]
        if position_ids is not None:
            position_ids = position_ids[..., -input_ids.shape[1] :]
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            CACHE: given_cache(cache, past_key_values),
            "logits_to_keep": logits_to_keep,
            "use_cache": use_cache,
        }

    def can_generate(self) -> bool:
        """True."""
        return True

    def eval(self) -> "TransformersModel":
        """Itself: a decoder is not trained."""
        return self

    def to(self, *args: Any, **options: Any) -> "TransformersModel":
        """
        Itself, if it is asked for where it is.

        Raises:
            ValueError: Another device or dtype than the CPU and float32.
        """
        for value in (*args, *options.values()):
            if isinstance(value, torch.dtype):
                same = value == self.dtype
            else:
                same = torch.device(value).type == self.device.type
            if not same:
                raise ValueError(
                    "a decoder takes ids and gives float32 logits on the CPU, whatever it runs on (give a "
                    f"pipeline device='cpu'): got {value!r}"
                )
        return self

    def get_experts_implementation(self) -> dict[str, str]:
        """Empty: what a decoder runs was decided when it was compiled."""
        return {}

    # What follows overrides private methods of transformers.

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        refuse_arguments(model_kwargs)

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        refuse_fields(generation_config)
        shape = self._feeder.shape
        each = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
        check_rows(batch_size * each, shape.batch_size)
        if max_cache_length > shape.max_length:
            raise ValueError(
                f"prompt and new tokens must be at most {shape.max_length + 1}, one more than the decoder's "
                f"max_length: got {max_cache_length + 1}"
            )
        mask = model_kwargs.get("attention_mask")
        if mask is not None and not bool((mask[:, -1] != 0).all()):
            raise ValueError(
                "'attention_mask' must be 1 in the last column, as padding_side='left' of a tokenizer makes "
                f"it: got {mask[:, -1].tolist()}"
            )
        if generation_config.use_cache is not False or model_kwargs.get(CACHE) is not None:
            model_kwargs[CACHE] = cache_of(model_kwargs.get(CACHE))


def _config_of_sizes(decoder: Decoder) -> Any:
    shape = decoder.shape
    return PretrainedConfig(vocab_size=shape.vocab_size, max_position_embeddings=shape.max_length)  # type: ignore[call-arg]


def _generation_defaults() -> Any:
    return GenerationConfig()  # type: ignore[no-untyped-call]


def _require(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"'{name}' must be a transformers.{kind.__name__}: got {value!r:.80}")


def _with_tokens(generation_config: Any, tokenizer: Any) -> Any:
    """A copy, with the start, end and padding tokens of *tokenizer* where there are none."""
    config = copy.deepcopy(generation_config)
    for name in _FROM_THE_TOKENIZER:
        if vars(config).get(name) is None and tokenizer is not None:
            setattr(config, name, getattr(tokenizer, name, None))
    return config
