"""The contracts, the loop, and everything that the loop is made of."""

from .adaptive_p import AdaptiveP, AdaptivePRun
from .agreement import Agreement
from .choose import Choose
from .events import Event
from .follows_logits import FollowsLogits
from .generation import Generation
from .generator import Generator
from .greedy import Greedy
from .history import History
from .logprobs import Logprobs, TokenLogprob
from .mirostat import Mirostat, MirostatRun
from .protocols import (
    Decoder,
    DecoderShape,
    Draft,
    Drafter,
    DraftLength,
    Ending,
    Processor,
    Round,
    ScoresTrees,
    Selection,
    StopCondition,
    Verification,
)
from .sample import Sample
from .slots import Slots
from .statistics import Statistics
from .stop_strings import StopStrings
from .stopping import EndOfSequence, MaxLength, MaxNewTokens, MaxTime, StopTokens
from .text import Detokenizer

__all__ = [
    "AdaptiveP",
    "AdaptivePRun",
    "Agreement",
    "Choose",
    "Decoder",
    "DecoderShape",
    "Detokenizer",
    "Draft",
    "DraftLength",
    "Drafter",
    "EndOfSequence",
    "Ending",
    "Event",
    "FollowsLogits",
    "Generation",
    "Generator",
    "Greedy",
    "History",
    "Logprobs",
    "MaxLength",
    "MaxNewTokens",
    "MaxTime",
    "Mirostat",
    "MirostatRun",
    "Processor",
    "Round",
    "Sample",
    "ScoresTrees",
    "Selection",
    "Slots",
    "Statistics",
    "StopCondition",
    "StopStrings",
    "StopTokens",
    "TokenLogprob",
    "Verification",
]
