"""Loggers: where the entries of programs, and the states of Python loops, go.

Every logger is used in three ways: in a Python loop (`logger.log(state, step)`), streaming
(`logger.tap(f)(x)`), and collected (`logger.spool(f)(x)`). To write one, derive from `Logger`.
"""

from ._check import CheckLogger as CheckLogger
from ._composite import CompositeLogger as CompositeLogger
from ._composite import MultiLogger as MultiLogger
from ._console import ConsoleLogger as ConsoleLogger
from ._frequency import EveryNStep as EveryNStep
from ._frequency import EverySeconds as EverySeconds
from ._frequency import Frequency as Frequency
from ._frequency import LogSpaced as LogSpaced
from ._frequency import Once as Once
from ._frequency import Steps as Steps
from ._iteration import is_jax_array as is_jax_array
from ._iteration import log_convergence_async as log_convergence_async
from ._iteration import log_iteration_async as log_iteration_async
from ._jsonl import JsonlLogger as JsonlLogger
from ._jsonl import read_jsonl as read_jsonl
from ._logger import Logger as Logger
from ._mlflow import MlflowLogger as MlflowLogger
from ._null import NullLogger as NullLogger
from ._plot import PlotLogger as PlotLogger
from ._print import PrintLogger as PrintLogger
from ._profile import ProfileLogger as ProfileLogger
from ._progress import progress as progress
from ._python import PythonLogger as PythonLogger
from ._record import Record as Record
from ._replay import replay as replay
from ._ring import RingBufferLogger as RingBufferLogger
from ._runs import LoggerState as LoggerState
from ._runs import RunInfo as RunInfo
from ._tensorboard import TensorBoardLogger as TensorBoardLogger
from ._tqdm import TqdmLogger as TqdmLogger
from ._tracker import TrackerLogger as TrackerLogger
from ._trackio import TrackioLogger as TrackioLogger
from ._wandb import WandbLogger as WandbLogger
from ._webhook import WebhookLogger as WebhookLogger
from ._writing import WritingLogger as WritingLogger
