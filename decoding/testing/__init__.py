"""Support for tests of parts and decoders: the scripted decoder and the contract checks."""
