"""Text that is safe to show in a terminal.

Other members' files, peers and user code put words into messages and tables. A control character
among them could move the cursor and overwrite what is on the screen, such as a fingerprint.
"""


def printable(text: str) -> str:
    """One line: control characters, line breaks and bidirectional marks as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same for text of several lines, such as a traceback."""
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))
