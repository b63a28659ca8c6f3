"""
Let the CUDA build of torch be imported where there is no CUDA.

scripts/cuda_stubs.py TORCH_LIB

The public index has torch 2.9 with CUDA only, and it does not start without some 2.6 GB of NVIDIA's
libraries that a CPU never calls. For each of those that torch's libraries need, this assembles one of
the same name, in which every symbol that torch asks for is a function that returns an error. CUDA is
then found not to be available, and everything else works. Needs gcc, nm and readelf.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Opened by torch when it first uses them, which it never does without a GPU.
LAZY = ("linalg", "nvrtc")

# Whose a symbol without a version is, by how it begins. Two libraries begin like others of theirs.
PREFIXES = {
    "libcublas": "cublas(?!Lt)",
    "libcublasLt": "cublasLt",
    "libcudart": "cuda|__cuda",
    "libcudnn": "cudnn",
    "libcufft": "cufft",
    "libcufile": "cuFile",
    "libcupti": "cupti",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusparse": "cusparse(?!Lt)",
    "libcusparseLt": "cusparseLt",
    "libnccl": "p?nccl",
    "libnvrtc": "nvrtc",
    "libnvshmem_host": "nvshmem|_?ZN?[0-9]*nvshmem",
}

# cudaErrorInsufficientDriver; any other library's call just fails.
NO_DRIVER, FAILURE = 35, 1


def output(*command: str | Path) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Wanted:
    """What the libraries in a folder ask of others."""

    def __init__(self, folder: Path):
        """Read every library that is loaded when torch is imported."""
        self.libraries: set[str] = set()
        self.versions: dict[str, set[str]] = defaultdict(set)
        self.symbols: dict[str, set[str]] = defaultdict(set)
        self.defined: set[str] = set()
        present = sorted(folder.glob("*.so"))
        for library in present:
            if not any(name in library.name for name in LAZY):
                self._read(library)
        self.libraries -= {library.name for library in folder.iterdir()}

    def _read(self, library: Path) -> None:
        self.libraries |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", "-W", library)))
        of = ""
        for line in output("readelf", "-V", "-W", library).splitlines():
            if found := re.search(r"File: (\S+)", line):
                of = found[1]
            elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and of:
                self.versions[of].add(found[1])
        for line in output("nm", "-D", library).splitlines():
            *_, kind, symbol = line.split()
            name, _, version = symbol.partition("@")
            if kind in "Uw":
                self.symbols[version.lstrip("@")].add(name)
            else:
                self.defined.add(name)

    def of(self, library: str, prefix: str) -> dict[str, set[str]]:
        """The symbols that *library* has to define, by version; "" for those without one."""
        found = {version: self.symbols[version] for version in sorted(self.versions[library])}
        bare = {name for name in self.symbols[""] - self.defined if re.match(prefix, name)}
        return {**found, "": bare}


def build(path: Path, symbols: dict[str, set[str]]) -> None:
    """Assemble and link one library."""
    stem = path.name.split(".so")[0]
    lines = [".text"]
    for name in sorted(set().union(*symbols.values())):
        lines += [f".globl {name}", f".type {name},@function", f"{name}:"]
        if name.endswith(("GetErrorString", "GetErrorName")):
            lines += ["lea .Lmessage(%rip),%rax", "ret"]
        else:
            # What a compiler calls while a library is loaded must not fail.
            failure = NO_DRIVER if stem == "libcudart" else FAILURE
            lines += [f"mov ${0 if name.startswith('__cuda') else failure},%eax", "ret"]
    lines += [".section .rodata", '.Lmessage: .asciz "a stub: there is no CUDA here"']
    lines += ['.section .note.GNU-stack,"",@progbits', ""]
    versions = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in symbols.items()
        if version and names
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.s"), Path(folder, "versions.map")
        source.write_text("\n".join(lines))
        script.write_text("\n".join(versions) + "\n")
        options = [f"-Wl,--version-script={script}"] if versions else []
        output("gcc", "-shared", "-nostdlib", "-o", path, source, f"-Wl,-soname,{path.name}", *options)


def main(folder: Path) -> None:
    """Put what is missing beside torch's own libraries, where they look first."""
    wanted = Wanted(folder)
    for library in sorted(wanted.libraries):
        stem = library.split(".so")[0]
        if stem in PREFIXES:
            build(folder / library, wanted.of(library, PREFIXES[stem]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
