"""Every exception that chiplog raises, under one base class.

Each one also derives from the builtin that a caller would expect, so that `except TypeError`
keeps working, and each message says what is wrong, why, and the way out.
"""

__all__ = [
    "ChiplogError",
    "LogTypeError",
    "LogValueError",
    "MissingExtraError",
    "MixedKeyError",
    "NothingSelectedWarning",
    "StopRun",
    "UnboundedLogError",
    "UnsupportedError",
]


class ChiplogError(Exception):
    """The base class of everything that chiplog raises.

    Examples:
        >>> issubclass(UnboundedLogError, ChiplogError)
        True
    """


class LogTypeError(ChiplogError, TypeError):
    """Something that cannot be logged was given to `log`.

    Examples:
        >>> import chiplog
        >>> try:
        ...     chiplog.log({"name": "a string"})
        ... except TypeError as error:
        ...     print(type(error).__name__)
        LogTypeError
    """


class LogValueError(ChiplogError, ValueError):
    """An option has a value that means nothing.

    Examples:
        >>> import chiplog
        >>> try:
        ...     chiplog.spool(abs, reduce="median")
        ... except ValueError as error:
        ...     print(type(error).__name__)
        LogValueError
    """


class MixedKeyError(ChiplogError, ValueError):
    """One key was logged with two shapes, dtypes, structures or sets of steps.

    Examples:
        >>> import chiplog
        >>> def f(x):
        ...     chiplog.log({"x": x})
        ...     chiplog.log({"x": [x, x]})
        >>> try:
        ...     chiplog.spool(f)(1.0)
        ... except ValueError as error:
        ...     print(type(error).__name__)
        MixedKeyError
    """


class UnboundedLogError(ChiplogError, ValueError):
    """A while loop logs inside a trace, and no `capacity` says how much to keep.

    Examples:
        >>> import chiplog, jax
        >>> def f(x):
        ...     def body(x):
        ...         chiplog.log({"x": x})
        ...         return 2 * x
        ...     return jax.lax.while_loop(lambda x: x < 100, body, x)
        >>> try:
        ...     jax.jit(chiplog.spool(f))(1.0)
        ... except ValueError as error:
        ...     print(type(error).__name__)
        UnboundedLogError
    """


class NothingSelectedWarning(UserWarning):
    """A filter selects none of the keys that a function logs.

    Examples:
        >>> import chiplog, warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = chiplog.spool(lambda x: chiplog.log({"loss": x}), "lost")(1.0)
        >>> caught[0].category.__name__
        'NothingSelectedWarning'
    """


class StopRun(ChiplogError, RuntimeError):  # noqa: N818 (it is a request)
    """Raise this in a callback of `tap` to stop the program that it listens to.

    The tapped function raises it as soon as the program hands over more entries, and the callback
    gets none of them. If it was called in a function that is compiled itself, JAX raises an error
    of its own that quotes it.

    Examples:
        >>> import chiplog, jax
        >>> def forever(x):
        ...     def body(x):
        ...         chiplog.log({"x": x})
        ...         return x + 1
        ...     return jax.lax.while_loop(lambda x: x >= 0, body, x)
        >>> def enough(logs):
        ...     if logs["x"] >= 3:
        ...         raise chiplog.StopRun("that is enough")
        >>> try:
        ...     chiplog.tap(forever, enough)(0.0)
        ... except chiplog.StopRun as stop:
        ...     print(stop)
        that is enough
    """


class LoggerStateError(ChiplogError, RuntimeError):
    """A logger was used outside of its `with`, entered twice, or used again after it was closed.

    Examples:
        >>> from chiplog.loggers import PrintLogger
        >>> try:
        ...     PrintLogger().log({"x": 1}, 0)
        ... except RuntimeError as error:
        ...     print(error)
        PrintLogger was used before it was opened. Write `with PrintLogger(...) as logger:`, and ...
    """


class LogFileError(ChiplogError, OSError):
    """A logger cannot write where it was told to.

    Examples:
        >>> from chiplog.loggers import JsonlLogger
        >>> try:
        ...     with JsonlLogger("/"):
        ...         pass
        ... except OSError as error:
        ...     print(error)
        JsonlLogger cannot write to '/': it is a directory. Give the name of a file in it.
    """


class StorageError(ChiplogError, ValueError):
    """A file cannot be read, or an array cannot be stored.

    Examples:
        >>> from chiplog.storage import HDF5StorageReader
        >>> try:
        ...     HDF5StorageReader("nowhere.h5")
        ... except ValueError as error:
        ...     print(error)
        There is no file '...nowhere.h5'.
    """


class WebhookError(ChiplogError, ConnectionError):
    """A `WebhookLogger` could not deliver a message.

    Examples:
        >>> issubclass(WebhookError, ConnectionError)
        True
    """


class UnsupportedError(ChiplogError, NotImplementedError):
    """A `log` call sits inside a JAX construct that chiplog cannot look into.

    Examples:
        >>> issubclass(UnsupportedError, NotImplementedError)
        True
    """


class MissingExtraError(ChiplogError, ImportError):
    """An optional dependency is missing; the message names the extra to install.

    Examples:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


class TrackerError(ChiplogError, ConnectionError):
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
