"""These tests run with the real trackers, where they are installed."""

from with_trackers import *  # noqa: F403
from with_trackers import _as_a_user_has_it as _as_a_user_has_it
