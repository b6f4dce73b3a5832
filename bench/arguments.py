"""Types of options that scripts of this folder share: what is wrong is said before anything is built or measured."""
import argparse
import pathlib


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a number from 1 on")
    return int(text)


def writable(text):
    """A file for results, which are not to be lost in the end."""
    try:
        with open(text, "a"):
            return pathlib.Path(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: cannot be written: {error.strerror}") from error


def built(text, *files):
    """A build folder that has these files."""
    folder = pathlib.Path(text)
    for file in files:
        if not (folder / file).exists():
            raise argparse.ArgumentTypeError(f"{folder} has no {file}: run scripts/quickstart, or name another build")
    return folder
