"""
Who takes part in a comparison, each in a process of its own.

``serving.py``, ``llama_cpp_contender.py`` and ``write_gguf.py`` import nothing of decodekit, so that
they run in another Python environment, the one that has the peer.
"""
