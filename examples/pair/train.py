"""
Train the bundled pair: a target that writes Python, and a draft that agrees with it.

Both see the same batches. The target learns the text; the draft learns the target's
distribution for that text, from the logits that the target's own step computes anyway
(distillation, Hinton et al., 2015, https://arxiv.org/abs/1503.02531; total variation is
what decides acceptance, Zhou et al., 2023, DistillSpec, https://arxiv.org/abs/2310.08461).

Then the draft goes on alone, half of the time on text that the target has written, since that
is what it will have to agree with.

    python examples/pair/train.py --minutes 80 --draft-minutes 25 --device cpu

Files are assigned to training or held out by a hash of their path, so that
``held_out()`` names the same files on every machine with the same Python.
"""

import argparse
import hashlib
import json
import pathlib
import platform
import sysconfig
import time
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
STDLIB = pathlib.Path(sysconfig.get_paths()["stdlib"])
REPORT = HERE / "training.json"
END = "<|endoftext|>"
# Tables of characters and topics: data in the shape of a program, not programs.
DATA = ("site-packages", "encodings", "pydoc_data", "lib2to3/tests/data", "test/cjkencodings")
CONTEXT = 512
DRAWN_AT = 0.7  # the temperature at which the draft is to agree

TARGET = {"hidden_size": 320, "intermediate_size": 864, "num_hidden_layers": 6, "num_attention_heads": 10}
DRAFT = {"hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 3, "num_attention_heads": 4}


def _is_held_out(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] < 8  # one file in 32


def _sources() -> Iterator[tuple[str, str]]:
    """Every program of the standard library: its path there, and its text."""
    for path in sorted(STDLIB.rglob("*.py")):
        name = path.relative_to(STDLIB).as_posix()
        if name.startswith(DATA):
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # the library's tests of broken encodings


def training() -> list[str]:
    """The texts that the pair is trained on."""
    return [text for name, text in _sources() if not _is_held_out(name)]


def held_out() -> list[str]:
    """The texts that neither model nor tokenizer has seen."""
    return [text for name, text in _sources() if _is_held_out(name)]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 4096 tokens, one of them ``<|endoftext|>``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, clean_up_tokenization_spaces=False
    )


def windows(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """The texts one after the other, cut into rows of one context each: ``[rows, CONTEXT + 1]``."""
    end = tokenizer.eos_token_id
    stream: list[int] = []
    for text in texts:
        stream += [end, *tokenizer(text)["input_ids"]]
    rows = (len(stream) - 1) // CONTEXT
    starts = torch.arange(rows)[:, None] * CONTEXT
    return torch.tensor(stream)[starts + torch.arange(CONTEXT + 1)]


def build(shape: dict[str, int], tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of *shape*, grouped queries two to a key, input and output embeddings shared."""
    config = LlamaConfig(
        **shape,
        vocab_size=len(tokenizer),
        num_key_value_heads=shape["num_attention_heads"] // 2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config)


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (Jordan et al., 2024), Adam for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=0.003, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def disagreement(draft: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """KL(target ‖ draft) and total variation at the drawing temperature, each ``[tokens]``."""
    log_q = (draft / DRAWN_AT).log_softmax(-1)
    log_p = (target / DRAWN_AT).log_softmax(-1)
    p = log_p.exp()
    return (p * (log_p - log_q)).sum(-1), 0.5 * (p - log_q.exp()).abs().sum(-1)


def pace(done: float) -> float:
    """The learning rate's share at the fraction *done* of the time: warm up, hold, cool down."""
    return min(1.0, done / 0.02, max(0.0, (1 - done) / 0.6))


def logits(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, torch.bfloat16):
        out: Tensor = model(rows, use_cache=False).logits
    return out.float().flatten(0, 1)


def losses(target: LlamaForCausalLM, draft: LlamaForCausalLM, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The target's cross-entropy, and the draft's two distances from the target, in nats and in mass."""
    p, q = logits(target, rows[:, :-1]), logits(draft, rows[:, :-1])
    kl, variation = disagreement(q, p.detach())
    return nn.functional.cross_entropy(p, rows[:, 1:].flatten()), kl.mean(), variation.mean()


@torch.no_grad()
def evaluate(target: LlamaForCausalLM, draft: LlamaForCausalLM, rows: Tensor) -> dict[str, float]:
    """Mean losses in nats a token, and the mass on which the two agree, on held-out *rows*."""
    sums = torch.zeros(3)
    for batch in rows.split(16):
        loss, kl, variation = losses(target, draft, batch)
        sums += torch.stack([loss, kl, 1 - variation]).cpu() * len(batch)
    names = ("target_loss", "draft_kl", "agreement")
    return dict(zip(names, (sums / len(rows)).tolist(), strict=True))


@torch.no_grad()
def continuations(target: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """*rows* ``[n, CONTEXT + 1]`` with all but the first quarter replaced by what *target* writes."""
    target.eval()
    return target.generate(
        rows[:, : CONTEXT // 4], do_sample=True, temperature=DRAWN_AT, top_k=0, eos_token_id=None,
        pad_token_id=0, min_length=CONTEXT + 1, max_length=CONTEXT + 1,
    )  # fmt: skip


class Clock:
    """A stage's time, and the learning rates that go with it."""

    def __init__(self, minutes: float, every: list[torch.optim.Optimizer]) -> None:
        self.start, self.seconds, self.every = time.monotonic(), 60 * minutes, every
        self.peaks = [o.param_groups[0]["lr"] for o in every]

    def running(self) -> bool:
        done = (time.monotonic() - self.start) / self.seconds if self.seconds else 1.0
        for optimizer, peak in zip(self.every, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * pace(done)
        return done < 1

    def step(self, loss: Tensor) -> None:
        loss.backward()
        for optimizer in self.every:
            optimizer.step()
            optimizer.zero_grad()


def train(
    minutes: float, draft_minutes: float, device: str, batch_size: int, seed: int, resume: bool
) -> None:
    """Train both together for *minutes*, then the draft alone, half of it on what the target writes."""
    torch.manual_seed(seed)
    texts = training()
    tokenizer = load_tokenizer() if resume else train_tokenizer(texts)
    rows = windows(tokenizer, texts).to(device)
    unseen = windows(tokenizer, held_out())[::4][:128].to(device)
    target, draft = (
        (load(name) if resume else build(shape, tokenizer)).to(device)
        for name, shape in (("target", TARGET), ("draft", DRAFT))
    )
    sizes = {n: sum(p.numel() for p in m.parameters()) for n, m in (("target", target), ("draft", draft))}
    print(f"{rows.numel():,} training tokens, {unseen.numel():,} held out; parameters {sizes}", flush=True)
    step_losses, order, step, start = torch.compile(losses), torch.randperm(len(rows)), 0, time.monotonic()

    def next_batch(n: int) -> Tensor:
        nonlocal step
        step += 1
        return rows[order[torch.arange((step - 1) * n, step * n) % len(order)]]

    def tell(loss: Tensor, kl: Tensor, variation: Tensor) -> None:
        if step % 20 == 0:
            spent = time.monotonic() - start
            print(
                f"{spent:6.0f} s  step {step}  loss {loss:.3f}  kl {kl:.3f}  agreement {1 - variation:.3f}",
                flush=True,
            )
        if step % 200 == 0:
            save(tokenizer, target, draft)

    clock = Clock(minutes, [*optimizers(target), *optimizers(draft)])
    while clock.running():
        loss, kl, variation = step_losses(target, draft, next_batch(batch_size))
        clock.step(loss + kl + variation)
        tell(loss, kl, variation)
    together = step

    target.requires_grad_(False)
    clock = Clock(draft_minutes, optimizers(draft))
    while clock.running():
        written = continuations(target, next_batch(2 * batch_size))
        for batch in (*written.split(batch_size), next_batch(batch_size), next_batch(batch_size)):
            loss, kl, variation = step_losses(target, draft, batch)
            clock.step(kl + variation)
            tell(loss, kl, variation)

    save(tokenizer, target, draft)
    report = {
        "command": f"python examples/pair/train.py --minutes {minutes:g} --draft-minutes {draft_minutes:g} "
        f"--device {device} --batch-size {batch_size} --seed {seed}" + " --resume" * resume,
        "device": device_name(device),
        "python": platform.python_version(), "torch": torch.__version__,
        "seconds": round(time.monotonic() - start), "steps_together": together,
        "tokens_together": together * batch_size * CONTEXT,
        "corpus_tokens": rows.numel(), "parameters": sizes,
        "held_out": {n: round(x, 4) for n, x in evaluate(target, draft, unseen).items()},
    }  # fmt: skip
    reports = json.loads(REPORT.read_text()) if resume and REPORT.exists() else []
    REPORT.write_text(json.dumps([*reports, report], indent=2) + "\n")
    print(json.dumps(report, indent=2))


def device_name(device: str) -> str:
    """What the report calls the machine."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def load_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that was saved before."""
    return PreTrainedTokenizerFast.from_pretrained(HERE / "target")


def load(name: str) -> LlamaForCausalLM:
    """The model *name* that was saved before, in float32."""
    return LlamaForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)


def save(tokenizer: PreTrainedTokenizerFast, target: LlamaForCausalLM, draft: LlamaForCausalLM) -> None:
    """Write both models in bfloat16, each with the tokenizer beside it."""
    for name, model in (("target", target), ("draft", draft)):
        tokenizer.save_pretrained(HERE / name)
        half = LlamaForCausalLM(model.config).to(torch.bfloat16)
        half.load_state_dict(model.state_dict())
        half.save_pretrained(HERE / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=80, help="how long to train; the schedule fits itself to it"
    )
    parser.add_argument(
        "--draft-minutes", type=float, default=25, help="how long to train the draft alone after it"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the models beside this file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=16, help=f"rows of {CONTEXT} tokens a step")
    parser.add_argument("--seed", type=int, default=0)
    train(**vars(parser.parse_args()))
