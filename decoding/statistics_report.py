"""What a run counted, as text and as a figure."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .statistics import Statistics

_BAR = 24
"""Characters of the longest bar."""

_PHASES = ("prefill", "draft", "target", "choose", "gap", "stop", "logprobs")
"""In the order of a round."""


def as_text(statistics: "Statistics") -> str:
    """A few lines, with a histogram of the accepted lengths if anything was drafted."""
    first = 1000 * (statistics.first_token_seconds or 0.0)
    lines = [
        f"{statistics.tokens} tokens in {statistics.total_seconds:.3f} s: "
        f"{statistics.tokens_per_second:.1f} tokens/s, the first after {first:.1f} ms",
        f"{statistics.forwards} forwards of the target" + _waste(statistics),
    ]
    if statistics.drafted:
        low, high = statistics.mean_accepted_length_interval()
        margin = f" ± {(high - low) / 2:.3f} (95 %)" if high < math.inf else ""
        tau = statistics.mean_accepted_length
        lines.append(f"τ = {tau:.3f}{margin}; verifications: {statistics.steps}")
        lines += _histogram(statistics)
    if statistics.smallest_gap is not None:
        lines.append(f"smallest gap {statistics.smallest_gap:.2e}")
    spent = (f"{phase} {seconds:.3f}" for phase, seconds in _spent(statistics).items())
    return "\n".join([*lines, "seconds: " + ", ".join(spent)])


def _waste(statistics: "Statistics") -> str:
    if not statistics.columns:
        return ""
    share = 100 * statistics.wasted_columns / statistics.columns
    return (
        f"; after the first tokens {statistics.columns} columns, "
        f"{statistics.wasted_columns} wasted ({share:.0f} %), {statistics.padding} of them padding"
    )


def _histogram(statistics: "Statistics") -> list[str]:
    """A line for each accepted length, with what became of the guess that makes it."""
    times = statistics.accepted_lengths
    longest, digits = max(times), max(5, len(str(max(times))))
    lines = [f"stood {'times':>{digits}} {'':{_BAR}}  guess stands  if those before do"]
    for i, n in enumerate(times):
        line = f"{i:5} {n:{digits}} {'█' * round(_BAR * n / longest):{_BAR}}"
        if i:
            given, conditional = statistics.acceptance[i - 1], statistics.conditional_acceptance[i - 1]
            line += f"  {given:12.3f}  {conditional:18.3f}"
        lines.append(line.rstrip())
    return lines


def _spent(statistics: "Statistics") -> dict[str, float]:
    spent = {phase: statistics.seconds[phase] for phase in _PHASES if phase in statistics.seconds}
    # What somebody else's part calls otherwise comes behind.
    return {**spent, **statistics.seconds, "host": statistics.host_seconds}


def as_figure(statistics: "Statistics") -> Any:
    """
    Accepted lengths, acceptance by position, and seconds, beside one another.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('a figure needs matplotlib: pip install "decodekit[plot]"') from error
    # Not through pyplot, which would keep it, and choose a window system.
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    lengths, guesses, seconds = figure.subplots(1, 3)

    tau, times = statistics.mean_accepted_length, statistics.accepted_lengths
    lengths.bar(range(len(times)), times)
    lengths.set(title=f"τ = {tau:.3f}", xlabel="guesses that stood", ylabel="verifications")

    places = range(1, len(statistics.drafted) + 1)
    guesses.plot(places, statistics.acceptance, marker="o", label="of all")
    guesses.plot(places, statistics.conditional_acceptance, marker="s", label="where those before stood")
    guesses.set(title="acceptance", xlabel="guess", ylabel="share that stood", ylim=(0, 1.02))
    guesses.xaxis.get_major_locator().set_params(integer=True)
    guesses.legend()

    spent = _spent(statistics)
    seconds.barh(list(spent), list(spent.values()))
    seconds.set(title=f"{statistics.tokens_per_second:.1f} tokens/s", xlabel="seconds")
    seconds.invert_yaxis()
    return figure
