"""
The systems that decodekit is measured beside, each in a process of its own, and their published figures.

``serving.py``, ``llama_cpp_peer.py`` and ``write_gguf.py`` import nothing of decodekit and are run as
files, so that they run in another Python environment: the one that has the peer.
"""
