"""Which tokens a decoder's cache holds, and how the missing ones are fed."""
