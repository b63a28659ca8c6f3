"""A process that was forked while another thread generated."""

import subprocess
import sys

FORKS = """
import os, sys, threading
import torch
from decodekit.decoding import Generator, MaxNewTokens
from decodekit.testing import ScriptedDecoder

decoder = ScriptedDecoder(torch.zeros(1, 3))
inside, forked = threading.Event(), threading.Event()

def waits(logits, history):
    inside.set()
    forked.wait()
    return logits

thread = threading.Thread(target=Generator(decoder, processors=waits, stop=MaxNewTokens(2)), args=([1],))
thread.start()
inside.wait()
child = os.fork()
if not child:
    # A decoder of its own works.
    own = Generator(ScriptedDecoder(torch.zeros(1, 3)), stop=MaxNewTokens(2))([1])
    try:
        Generator(decoder, stop=MaxNewTokens(2))([1])
    except RuntimeError as error:
        os._exit(7 if "'spawn'" in str(error) and own.ids == [[0, 0]] else 8)
    os._exit(9)
_, status = os.waitpid(child, 0)
forked.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_the_child_is_told_instead_of_waiting() -> None:
    """The lock's holder does not exist there; another decoder can be used."""
    done = subprocess.run([sys.executable, "-c", FORKS], timeout=120, check=False)

    assert 7 == done.returncode
