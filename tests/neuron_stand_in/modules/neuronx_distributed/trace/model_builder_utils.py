"""Results of tracing and compiling, as far as they are documented and used here."""

import attrs
from torch_neuronx.recording import Recording


@attrs.frozen(eq=False)
class Hlo:
    """Stand-in for a HloModuleProto."""

    recording: Recording
    attributes: bytes = b""
    """What was added to the message after tracing."""

    def SerializeToString(self, deterministic: bool = False) -> bytes:  # noqa: N802 (as in protocol buffers)
        """The bytes of the message."""
        return self.recording.proto + self.attributes


@attrs.define(eq=False)
class TraceArtifacts:
    """A traced program."""

    hlo: Hlo
    metaneff: bytes
    weight_name_to_idx: dict[str, int]
    parameters: dict[str, bool]
    """Parameters of the model's signature: name to whether it is required."""

    weight_names_to_skip: set[str] = attrs.field(factory=set)


@attrs.frozen
class CompilationArtifacts:
    """A compiled program."""

    neff_filepath: str


@attrs.frozen
class WLOArtifacts(CompilationArtifacts):
    """A compiled program, and the layout of weights that was chosen for it."""

    wrapped_neff_hlo_filepath: str | None = None


@attrs.frozen
class LayoutTransformerArtifacts:
    """The program that changes the layout of weights."""

    hlo_filepath: str
    neff_filepath: str
    metaneff_filepath: str
