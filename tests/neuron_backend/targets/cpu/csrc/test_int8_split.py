"""The split of inputs into int8 terms, compiled to end the program where C++ leaves open what happens."""

import os
import subprocess
from pathlib import Path

import torch

from decodekit.neuron_backend.targets.cpu.kernel_library import SOURCE

from .....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain

PROGRAM = """
#include <cstdio>
#include <limits>

#include "int8_split.h"

int main() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const float x[4][3] = {{1, -2, 0}, {1, nan, 2}, {infinity, 1, 2}, {3, -infinity, infinity}};
  const auto show = [](const auto* x, int terms) {
    decodekit::Int8Split split;
    split.of(4, x, 3, 3);
    for (int row = 0; row < 4; ++row) {
      const auto* of = &split.terms[terms * 3 * row];
      std::printf("%g %d %d %d\\n", std::fabs(split.largest[row]), of[0], of[1], of[2]);
    }
  };
  show(x[0], 3);
  c10::Half narrow[12];
  for (int i = 0; i < 12; ++i) narrow[i] = x[i / 3][i % 3];
  show(narrow, 2);
}
"""


def test_inputs_that_are_not_finite_have_terms(tmp_path):
    """Those of 0, in float32 and float16; the largest magnitude, by which results are multiplied, is NaN."""
    source, program = tmp_path / "split.cpp", tmp_path / "split"
    source.write_text(PROGRAM)
    checks = ["-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"]
    torch_folder = Path(torch.__file__).parent
    includes = [f"-I{SOURCE.parent}", f"-I{torch_folder / 'include'}"]
    libraries = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
    command = [os.environ.get("CXX", "g++"), "-std=c++20", *includes, *checks, "-w", str(source)]
    subprocess.run([*command, "-o", str(program), *libraries], check=True)
    written = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()

    assert ["2 64 -127 0", *["nan 0 0 0"] * 3] * 2 == written
