"""Ports for tests whose processes are told where to meet."""
import random
import socket


def free_port():
    """Below those that the kernel hands out, so that nobody else has it before it is listened to: who connects early would
    meet a stranger there."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("", port))
            except OSError:
                continue
            return port
