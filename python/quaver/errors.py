"""The error that the command line shows as one line, without a traceback."""


class BadInputError(ValueError):
    """Something the user gave is not usable; the message names the value and what was expected."""
