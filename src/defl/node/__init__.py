"""The program that an organisation runs: sockets, files, clock and processes around a participant.

Nothing of the protocol is decided here; what a participant asks for is done here, in its order.
"""
