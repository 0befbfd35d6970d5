"""The program that an organisation runs: sockets, files, clock and processes around a participant.

No protocol decision is made here; this package carries out a participant's output, in its order.
"""
