"""The example that trains for several seeds at once."""

import importlib.util
import pathlib

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "seeds.py"


def test_every_seed_learns_and_can_be_watched(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("seeds", EXAMPLE)
    seeds = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(seeds)
    lengths = np.asarray(seeds.main(seeds=3, updates=40))
    assert "To see the curves: tensorboard --logdir runs" in capsys.readouterr().out
    assert (lengths[:, -5:].mean(1) > 2 * lengths[:, 2:5].mean(1)).all()
    for seed, path in enumerate(sorted((tmp_path / "runs").glob("cart-pole/*/seed-*"))):
        found = EventAccumulator(str(path), {"scalars": 0}).Reload()
        written = [event.value for event in found.Scalars("episode/length")]
        np.testing.assert_array_equal(written, lengths[seed])
        assert len(found.Scalars("loss/policy")) == 40
    assert seed == 2
