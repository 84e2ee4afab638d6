"""Every exception that spoolax raises, under one base class.

Each one also derives from the builtin that a caller would expect, so `except TypeError` works. Each
message says what is wrong, why, and what to do.
"""

__all__ = [
    "ArgumentChangedWarning",
    "Converged",
    "InterruptedWarning",
    "LogFileError",
    "LogTypeError",
    "LogValueError",
    "LoggerStateError",
    "MissingExtraError",
    "MixedKeyError",
    "NothingSelectedWarning",
    "ProcessError",
    "SpoolaxError",
    "StopRun",
    "StorageError",
    "TrackerError",
    "UnboundedLogError",
    "UnheardLogWarning",
    "UnsentWarning",
    "UnsupportedError",
    "WebhookError",
]


class SpoolaxError(Exception):
    """The base class of all errors that spoolax raises.

    Examples:
        >>> issubclass(UnboundedLogError, SpoolaxError)
        True
    """


class LogTypeError(SpoolaxError, TypeError):
    """Raised when `log` gets a value that cannot be logged, or an option has the wrong type.

    Examples:
        >>> import spoolax
        >>> try:
        ...     spoolax.log({"name": "a string"})
        ... except TypeError as error:
        ...     print(type(error).__name__)
        LogTypeError
    """


class LogValueError(SpoolaxError, ValueError):
    """Raised when an option or argument has an invalid value.

    Examples:
        >>> import spoolax
        >>> try:
        ...     spoolax.spool(abs, reduce="median")
        ... except ValueError as error:
        ...     print(type(error).__name__)
        LogValueError
    """


class ProcessError(SpoolaxError, RuntimeError):
    """Raised when several processes of `jax.distributed` do not act together, or another failed.

    Examples:
        >>> issubclass(ProcessError, RuntimeError)
        True
    """


class MixedKeyError(SpoolaxError, ValueError):
    """Raised when one key is logged with different shapes, dtypes, structures, steps or lanes.

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
    """Raised when a while loop logs inside a trace, and `spool` has no `capacity` or `reduce`.

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
    """Issued when a listener gets nothing: nothing is logged, or a filter selects none of it.

    Examples:
        >>> import spoolax, warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = spoolax.spool(lambda x: spoolax.log({"loss": x}), "lost")(1.0)
        >>> caught[0].category.__name__
        'NothingSelectedWarning'
    """


class MissingKeyError(SpoolaxError, KeyError):
    """Raised when a run has nothing of that name; the message says what it has.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     logger.log({"loss": 0.5}, 0)
        >>> try:
        ...     spoolax.open(path)["los"]
        ... except KeyError as error:
        ...     print(error)
        log.h5 has no 'los'. Did you mean 'loss'?
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # Others show it in quotes.


class UnheardLogWarning(UserWarning):
    """Issued when nobody hears a `log` call, though a logger is open, or a block listens.

    Examples:
        >>> issubclass(UnheardLogWarning, UserWarning)
        True
    """


class ArgumentChangedWarning(UserWarning):
    """Issued when a function changes an argument in place, and the caller's does not change.

    Examples:
        >>> import spoolax, warnings
        >>> def f(state):
        ...     state["x"] = state["x"] + 1
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = spoolax.watch_nan(f)({"x": 1.0})
        >>> print(caught[0].message)
        `f` changes its argument `state` in place, but only in a copy: ...
    """


class StopRun(SpoolaxError, RuntimeError):  # noqa: N818 (it is a request)
    """Raise this in a callback of `tap` to stop the program.

    The tapped function raises it as soon as the program sends more entries, which the callback does
    not get. If the tapped function was called inside another `jit`, JAX raises an error of its own
    that quotes this one.

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


class Converged(StopRun):
    """Raise this instead of `StopRun` if the run has come where it was to go.

    It stops a program in the same way, but files and trackers say that the run has finished, with
    this as the reason; and if a logger of `spoolax.simulate` raises it, that returns the state.

    Examples:
        >>> import spoolax, jax
        >>> class Patience(spoolax.Logger):
        ...     def log(self, state, step):
        ...         if state < 0.01:
        ...             raise spoolax.Converged(f"It is small at step {step}.")
        >>> logger = Patience()
        >>> key, halve = jax.random.key(0), lambda key, x: x / 2
        >>> x = spoolax.simulate(halve, 1.0, 100, key=key, logger=logger)
        >>> float(x), logger.ending.status, logger.ending.reason
        (0.0078125, 'finished', 'It is small at step 6.')
    """


class InterruptedWarning(UserWarning):
    """Issued by `spoolax.simulate` when Ctrl-C ended it early; see `spoolax.interrupted`.

    Examples:
        >>> issubclass(InterruptedWarning, UserWarning)
        True
    """


class LoggerStateError(SpoolaxError, RuntimeError):
    """Raised when a logger is used before it is opened or after it is closed, or is opened twice.

    Examples:
        >>> from spoolax.loggers import PrintLogger
        >>> try:
        ...     PrintLogger().log({"x": 1}, 0)
        ... except RuntimeError as error:
        ...     print(error)
        PrintLogger was used before it was opened. Write `with PrintLogger(...) as logger:`, and ...
    """


class LogFileError(SpoolaxError, OSError):
    """Raised when a file cannot be created, or cannot be written to.

    Examples:
        >>> from spoolax.loggers import JsonlLogger
        >>> try:
        ...     with JsonlLogger("/"):
        ...         pass
        ... except OSError as error:
        ...     print(error)
        JsonlLogger cannot write to '/': it is a directory. Pass the name of a file in it.
    """


class StorageError(SpoolaxError, ValueError):
    """Raised when a stored file cannot be read, or something cannot be stored in it.

    Examples:
        >>> from spoolax.storage import HDF5StorageReader
        >>> try:
        ...     HDF5StorageReader("nowhere.h5")
        ... except ValueError as error:
        ...     print(error)
        There is no file '...nowhere.h5'.
    """


class WebhookError(SpoolaxError, ConnectionError):
    """Raised when a `WebhookLogger` could not deliver a message.

    Examples:
        >>> issubclass(WebhookError, ConnectionError)
        True
    """


class UnsupportedError(SpoolaxError, NotImplementedError):
    """Raised when a `log` call is inside a JAX construct from which spoolax cannot log.

    Examples:
        >>> issubclass(UnsupportedError, NotImplementedError)
        True
    """


class MissingExtraError(SpoolaxError, ImportError):
    """Raised when an optional dependency is missing; the message has the command that installs it.

    Examples:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


class TrackerError(SpoolaxError, ConnectionError):
    """Raised when a tracker could not open its run.

    Examples:
        >>> issubclass(TrackerError, ConnectionError)
        True
    """


class UnsentWarning(UserWarning):
    """Issued when entries could not be sent to a tracker; the message says where they are.

    Examples:
        >>> issubclass(UnsentWarning, UserWarning)
        True
    """
