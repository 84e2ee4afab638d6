"""Loggers: where the entries of programs, and the states of Python loops, go.

Every logger works in three ways: in a Python loop (`logger.log(state, step)`), streaming
(`logger.tap(f)(x)`), and collected (`logger.spool(f)(x)`). To write your own, derive from `Logger`.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .._watch.progress import progress as progress
    from ..storage import HDF5StorageWriter as HDF5StorageWriter
    from ..storage import SaveLogger as SaveLogger
    from ..storage import ZarrStorageWriter as ZarrStorageWriter
    from ._check import CheckLogger as CheckLogger
    from ._composite import CompositeLogger as CompositeLogger
    from ._composite import MultiLogger as MultiLogger
    from ._console import ConsoleLogger as ConsoleLogger
    from ._jsonl import JsonlLogger as JsonlLogger
    from ._null import NullLogger as NullLogger
    from ._plot import PlotLogger as PlotLogger
    from ._print import PrintLogger as PrintLogger
    from ._profile import ProfileLogger as ProfileLogger
    from ._protocol.ending import Ending as Ending
    from ._protocol.frequency import EveryNStep as EveryNStep
    from ._protocol.frequency import EverySeconds as EverySeconds
    from ._protocol.frequency import Frequency as Frequency
    from ._protocol.frequency import LogSpaced as LogSpaced
    from ._protocol.frequency import Once as Once
    from ._protocol.frequency import Steps as Steps
    from ._protocol.logger import Logger as Logger
    from ._protocol.record import Record as Record
    from ._protocol.runs import LoggerState as LoggerState
    from ._protocol.runs import RunInfo as RunInfo
    from ._protocol.writer import WritingLogger as WritingLogger
    from ._python import PythonLogger as PythonLogger
    from ._read_jsonl import read_jsonl as read_jsonl
    from ._ring import RingBufferLogger as RingBufferLogger
    from ._tqdm import TqdmLogger as TqdmLogger
    from ._webhook import WebhookLogger as WebhookLogger
    from .trackers._mlflow import MlflowLogger as MlflowLogger
    from .trackers._replay import replay as replay
    from .trackers._tensorboard import TensorBoardLogger as TensorBoardLogger
    from .trackers._tracker import TrackerLogger as TrackerLogger
    from .trackers._trackio import TrackioLogger as TrackioLogger
    from .trackers._wandb import WandbLogger as WandbLogger

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "CheckLogger": "._check",
        "CompositeLogger": "._composite",
        "ConsoleLogger": "._console",
        "Ending": "._protocol.ending",
        "EveryNStep": "._protocol.frequency",
        "EverySeconds": "._protocol.frequency",
        "Frequency": "._protocol.frequency",
        "HDF5StorageWriter": "..storage",
        "JsonlLogger": "._jsonl",
        "Logger": "._protocol.logger",
        "LoggerState": "._protocol.runs",
        "LogSpaced": "._protocol.frequency",
        "MlflowLogger": ".trackers._mlflow",
        "MultiLogger": "._composite",
        "NullLogger": "._null",
        "Once": "._protocol.frequency",
        "PlotLogger": "._plot",
        "PrintLogger": "._print",
        "ProfileLogger": "._profile",
        "progress": ".._watch.progress",
        "PythonLogger": "._python",
        "read_jsonl": "._read_jsonl",
        "Record": "._protocol.record",
        "replay": ".trackers._replay",
        "RingBufferLogger": "._ring",
        "RunInfo": "._protocol.runs",
        "SaveLogger": "..storage",
        "Steps": "._protocol.frequency",
        "TensorBoardLogger": ".trackers._tensorboard",
        "TqdmLogger": "._tqdm",
        "TrackerLogger": ".trackers._tracker",
        "TrackioLogger": ".trackers._trackio",
        "WandbLogger": ".trackers._wandb",
        "WebhookLogger": "._webhook",
        "WritingLogger": "._protocol.writer",
        "ZarrStorageWriter": "..storage",
    },
)
