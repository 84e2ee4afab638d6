"""Every exception that spoolax raises, under one base class.

Each one also derives from the builtin that a caller would expect, so that `except TypeError`
keeps working, and each message says what is wrong, why, and the way out.
"""

__all__ = [
    "LogFileError",
    "LogTypeError",
    "LogValueError",
    "LoggerStateError",
    "MissingExtraError",
    "MixedKeyError",
    "NothingSelectedWarning",
    "SpoolaxError",
    "StopRun",
    "StorageError",
    "TrackerError",
    "UnboundedLogError",
    "UnsentWarning",
    "UnsupportedError",
    "WebhookError",
]


class SpoolaxError(Exception):
    """The base class of everything that spoolax raises.

    Examples:
        >>> issubclass(UnboundedLogError, SpoolaxError)
        True
    """


class LogTypeError(SpoolaxError, TypeError):
    """Something that cannot be logged was given to `log`.

    Examples:
        >>> import spoolax
        >>> try:
        ...     spoolax.log({"name": "a string"})
        ... except TypeError as error:
        ...     print(type(error).__name__)
        LogTypeError
    """


class LogValueError(SpoolaxError, ValueError):
    """An option has a value that means nothing.

    Examples:
        >>> import spoolax
        >>> try:
        ...     spoolax.spool(abs, reduce="median")
        ... except ValueError as error:
        ...     print(type(error).__name__)
        LogValueError
    """


class MixedKeyError(SpoolaxError, ValueError):
    """One key was logged with two shapes, dtypes, structures or sets of steps.

    Examples:
        >>> import spoolax
        >>> def f(x):
        ...     spoolax.log({"x": x})
        ...     spoolax.log({"x": [x, x]})
        >>> try:
        ...     spoolax.spool(f)(1.0)
        ... except ValueError as error:
        ...     print(type(error).__name__)
        MixedKeyError
    """


class UnboundedLogError(SpoolaxError, ValueError):
    """A while loop logs inside a trace, and no `capacity` says how much to keep.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     def body(x):
        ...         spoolax.log({"x": x})
        ...         return 2 * x
        ...     return jax.lax.while_loop(lambda x: x < 100, body, x)
        >>> try:
        ...     jax.jit(spoolax.spool(f))(1.0)
        ... except ValueError as error:
        ...     print(type(error).__name__)
        UnboundedLogError
    """


class NothingSelectedWarning(UserWarning):
    """A filter selects none of the keys that a function logs.

    Examples:
        >>> import spoolax, warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = spoolax.spool(lambda x: spoolax.log({"loss": x}), "lost")(1.0)
        >>> caught[0].category.__name__
        'NothingSelectedWarning'
    """


class StopRun(SpoolaxError, RuntimeError):  # noqa: N818 (it is a request)
    """Raise this in a callback of `tap` to stop the program that it listens to.

    The tapped function raises it as soon as the program hands over more entries, and the callback
    gets none of them. If it was called in a function that is compiled itself, JAX raises an error
    of its own that quotes it.

    Examples:
        >>> import spoolax, jax
        >>> def forever(x):
        ...     def body(x):
        ...         spoolax.log({"x": x})
        ...         return x + 1
        ...     return jax.lax.while_loop(lambda x: x >= 0, body, x)
        >>> def enough(logs):
        ...     if logs["x"] >= 3:
        ...         raise spoolax.StopRun("that is enough")
        >>> try:
        ...     spoolax.tap(forever, enough)(0.0)
        ... except spoolax.StopRun as stop:
        ...     print(stop)
        that is enough
    """


class LoggerStateError(SpoolaxError, RuntimeError):
    """A logger was used outside of its `with`, entered twice, or used again after it was closed.

    Examples:
        >>> from spoolax.loggers import PrintLogger
        >>> try:
        ...     PrintLogger().log({"x": 1}, 0)
        ... except RuntimeError as error:
        ...     print(error)
        PrintLogger was used before it was opened. Write `with PrintLogger(...) as logger:`, and ...
    """


class LogFileError(SpoolaxError, OSError):
    """A logger cannot write where it was told to.

    Examples:
        >>> from spoolax.loggers import JsonlLogger
        >>> try:
        ...     with JsonlLogger("/"):
        ...         pass
        ... except OSError as error:
        ...     print(error)
        JsonlLogger cannot write to '/': it is a directory. Give the name of a file in it.
    """


class StorageError(SpoolaxError, ValueError):
    """A file cannot be read, or an array cannot be stored.

    Examples:
        >>> from spoolax.storage import HDF5StorageReader
        >>> try:
        ...     HDF5StorageReader("nowhere.h5")
        ... except ValueError as error:
        ...     print(error)
        There is no file '...nowhere.h5'.
    """


class WebhookError(SpoolaxError, ConnectionError):
    """A `WebhookLogger` could not deliver a message.

    Examples:
        >>> issubclass(WebhookError, ConnectionError)
        True
    """


class UnsupportedError(SpoolaxError, NotImplementedError):
    """A `log` call sits inside a JAX construct that spoolax cannot look into.

    Examples:
        >>> issubclass(UnsupportedError, NotImplementedError)
        True
    """


class MissingExtraError(SpoolaxError, ImportError):
    """An optional dependency is missing; the message names the extra to install.

    Examples:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


class TrackerError(SpoolaxError, ConnectionError):
    """The run of a tracker could not be opened.

    Examples:
        >>> issubclass(TrackerError, ConnectionError)
        True
    """


class UnsentWarning(UserWarning):
    """Entries could not be sent to a tracker; the message says where they are, and what to do.

    Examples:
        >>> issubclass(UnsentWarning, UserWarning)
        True
    """
