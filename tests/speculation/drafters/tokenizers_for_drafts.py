"""Different small tokenizers, and decoders that continue a given text."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from decodekit.speculation.drafters.vocabulary import Vocabulary
from decodekit.testing import ScriptedDecoder

TEXT = (
    "The quick brown fox, it's said, jumps over 13 lazy dogs. Съешь же ещё этих мягких французских булок, "
    "да выпей чаю.\n\nいろはにほへと ちりぬるを 我が世誰ぞ常ならむ 👩‍👩‍👧‍👦 waves 👋🏽 at 🇯🇵\n"
    "def f(x):\n        return [i ** 2 for i in range(x)]  # squares\n"
    "How much wood would a woodchuck chuck if a woodchuck could chuck wood? As much wood as it could. "
    "Der schnelle braune Fuchs springt über den faulen Hund, und der Hund schläft weiter. "
)


def byte_level(vocab_size: int, text: str = TEXT) -> Tokenizer:
    """Byte pairs, as GPT-2's."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text], trainer)
    return backend


def sentence_piece(vocab_size: int, text: str = TEXT) -> Tokenizer:
    """A unigram model with ▁, a space before every text and bytes for other letters, as Llama-2's."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator([text], trainer)
    scores = dict(json.loads(trained.to_str())["model"]["vocab"])
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256))]
    pieces += [(name, score) for name, score in scores.items() if name != "<unk>"]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


def wrapped(backend: Tokenizer, bos: str | None = None, eos: str | None = None) -> Any:
    """A Hugging Face tokenizer; *bos* goes before every text."""
    backend.add_special_tokens([token for token in (bos, eos) if token])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    names = {
        "bos_token": bos,
        "eos_token": eos,
        "unk_token": "<unk>" if "<unk>" in backend.get_vocab() else None,
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in names.items() if token},
    )


@functools.cache
def tokenizer(kind: str) -> Any:
    """One of each kind, and some that differ only in their merges."""
    makers = {
        "bytes": lambda: wrapped(byte_level(420), eos="<|end|>"),
        "bytes-few": lambda: wrapped(byte_level(290), eos="</s>"),
        "bytes-bos": lambda: wrapped(byte_level(360, TEXT[200:]), "<s>", "</s>"),
        "pieces": lambda: wrapped(sentence_piece(400), "<s>", "</s>"),
        "pieces-few": lambda: wrapped(sentence_piece(300, TEXT[200:]), eos="<|end|>"),
    }
    return makers[kind]()


KINDS = ["bytes", "bytes-few", "bytes-bos", "pieces", "pieces-few"]


def permuted(kind: str, seed: int = 0) -> tuple[Any, torch.Tensor]:
    """The byte-level tokenizer with permuted ids, and the new id of each."""
    state = json.loads(tokenizer(kind).backend_tokenizer.to_str())
    vocab = state["model"]["vocab"]
    # Added tokens always come last.
    new = torch.arange(len(tokenizer(kind)))
    new[: len(vocab)] = torch.randperm(len(vocab), generator=torch.Generator().manual_seed(seed))
    state["model"]["vocab"] = {name: int(new[index]) for name, index in vocab.items()}
    eos = tokenizer(kind).eos_token
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token=eos), new


def writer(kind: str, text: str, **shape: Any) -> ScriptedDecoder:
    """A decoder that continues *text* from any prefix, in its own tokens."""
    tokens = tokenizer(kind)
    vocabulary, ids = Vocabulary(tokens, len(tokens)), tokens.encode(text)

    def next_token(prefix: Sequence[int]) -> int:
        if ids[: len(prefix)] == list(prefix):
            return ids[len(prefix)] if len(prefix) < len(ids) else tokens.eos_token_id
        rest = text.encode()[len(vocabulary.bytes_of(prefix, starts_text=True)) :]
        # Not the canonical tokenization: the longest fitting token.
        fitting = [index for index, data in vocabulary.token_bytes.items() if data and rest.startswith(data)]
        return max(fitting, key=lambda index: len(vocabulary.token_bytes[index]), default=tokens.eos_token_id)

    return ScriptedDecoder(torch.eye(len(tokens)) * 20, line=next_token, **shape)
