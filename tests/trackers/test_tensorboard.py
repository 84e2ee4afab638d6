"""Files for TensorBoard, read back with its own reader."""

import io
import shutil

import numpy as np
import pytest
from cases import COLOURS, NUMBERS, TEXT, log_everything, log_seeds
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import plugin_data_pb2

import spoolax
from spoolax.errors import LogTypeError, TrackerError, UnsentWarning
from spoolax.loggers import TensorBoardLogger, replay
from spoolax.testing import LoggerContract

ALL = {"scalars": 0, "images": 0, "tensors": 0, "histograms": 0, "compressedHistograms": 0}


def read(path):
    return EventAccumulator(str(path), ALL).Reload()


class TestTensorBoardLogger(LoggerContract):
    def make(self, directory):
        return TensorBoardLogger(directory=directory)

    def read(self, logger):
        rows = []
        for path in sorted(logger.path.iterdir()):
            for event in EventFileLoader(str(path)).Load():
                # What is read is the newer form of a scalar, whichever was written.
                values = {v.tag: v.tensor.float_val for v in event.summary.value}
                if any(values.values()):
                    rows.append((event.step, {name: x[0] for name, x in values.items()}))
        return rows


@pytest.fixture
def make(tmp_path):
    return lambda **arguments: TensorBoardLogger(**{"directory": tmp_path, **arguments})


def test_everything_that_can_be_shown_arrives(make, tmp_path):
    logger = log_everything(make)
    assert logger.path == tmp_path / "everything"
    found = read(logger.path)

    def value(name):
        (event,) = found.Scalars(name)
        return event.value

    assert (value("loss/train"), value("zero"), value("count")) == (0.5, 0.25, 3)
    assert np.isnan(value("nan"))
    assert (value("inf"), value("minus")) == (np.inf, -np.inf)
    (image,) = found.Images("colours")
    seen = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    np.testing.assert_array_equal(seen, COLOURS)
    assert found.Images("grey")[0].step == 2
    (histogram,) = found.Histograms("numbers")
    counted = histogram.histogram_value
    assert (counted.num, counted.min, counted.max) == (100, NUMBERS.min(), NUMBERS.max())
    assert counted.sum == pytest.approx(NUMBERS.sum())
    assert sum(counted.bucket) == 100
    (text,) = found.Tensors("note/text_summary")
    assert text.tensor_proto.string_val[0].decode() == TEXT
    (text,) = found.Tensors("config/text_summary")
    assert '"lr": 0.5' in text.tensor_proto.string_val[0].decode()


def test_the_configuration_is_among_the_hyperparameters(make):
    logger = log_everything(make)
    found = read(logger.path).SummaryMetadata("_hparams_/session_start_info")
    data = plugin_data_pb2.HParamsPluginData.FromString(found.plugin_data.content)
    given = data.session_start_info.hparams
    assert (given["lr"].number_value, given["a.b"].number_value) == (0.5, 1)
    # It would say that there are no metrics to compare.
    assert "_hparams_/experiment" not in read(logger.path).Tags()["tensors"]


def test_every_seed_is_a_run(make, tmp_path):
    logger, walks = log_seeds(make)
    for i, walk in enumerate(walks):
        found = read(tmp_path / logger.group / f"seed-{i}")
        events = found.Scalars("walk/x")
        assert [event.value for event in events] == walk.tolist()
        assert [event.step for event in events] == list(range(20))
        assert [event.value for event in found.Scalars("episode")] == [j // 5 for j in range(20)]
        assert "step" not in found.Tags()["scalars"]
        (text,) = found.Tensors("config/text_summary")
        assert f'"seed": {i}' in text.tensor_proto.string_val[0].decode()


def test_runs_are_not_mixed_unless_that_is_wanted(make, tmp_path):
    for _ in range(2):
        with make(name="one", project="some") as logger:
            logger.log({"x": 1}, 0)
    assert logger.path == tmp_path / "some" / "one-2"
    with make(name="one", project="some", resume=True) as logger:
        logger.log({"x": 2}, 1)
    events = read(tmp_path / "some" / "one").Scalars("x")
    assert [(event.step, event.value) for event in events] == [(0, 1), (1, 2)]
    with pytest.raises(TrackerError, match="no run in"), make(name="none", resume="must"):
        pass


def test_seeds_can_be_resumed(make, tmp_path):
    for _ in range(2):
        logger, _ = log_seeds(lambda **arguments: make(resume=True, **arguments))
    assert logger.group == "walk"
    assert len(read(tmp_path / "walk" / "seed-3").Scalars("walk/x")) == 40


def test_tags_keep_their_values(make):
    with make(tags={"who": "me", "short": ""}) as logger:
        pass
    (text,) = read(logger.path).Tensors("config/text_summary")
    assert '"who:me"' in text.tensor_proto.string_val[0].decode()


def test_a_run_that_is_interrupted_says_so(make):
    with pytest.raises(KeyboardInterrupt), make() as logger:
        logger.log({"x": 1}, 0)
        raise KeyboardInterrupt
    (text,) = read(logger.path).Tensors("status/text_summary")
    assert text.tensor_proto.string_val[0] == b"interrupted: KeyboardInterrupt"


def test_a_row_that_cannot_be_written_does_not_repeat_the_others(make, monkeypatch):
    with pytest.warns(UnsentWarning, match="refused 1 row"), make() as logger:
        for i in range(100):
            logger.log({"x": i}, 2**64 if i == 50 else i)
    found = TestTensorBoardLogger().read(logger)
    assert [row["x"] for _, row in found] == [i for i in range(100) if i != 50]


def test_a_write_that_fails_halfway_is_undone(make, monkeypatch):
    failed = []

    class Halfway(io.FileIO):
        """A file on a disk that is full for a moment."""

        def write(self, data):
            if failed or len(data) < 500:
                return super().write(data)
            failed.append(True)
            super().write(data[: len(data) // 2])
            raise OSError("no space left")

    with make() as logger:
        assert logger.native is logger.native  # From now on there is a file.
        module = "spoolax.loggers.trackers._tensorboard"
        opened = lambda path, mode, buffering: Halfway(path, mode)  # noqa: E731
        monkeypatch.setattr(f"{module}.open", opened, raising=False)
        with logger._channel._busy:
            for i in range(100):
                logger.log({"x": i}, i)
            spoolax.flush()
    assert failed
    found = TestTensorBoardLogger().read(logger)
    assert [row["x"] for _, row in found] == list(range(100))


def test_there_is_a_writer_for_what_only_tensorboard_can_do(make):
    with make() as logger:
        logger.log({"x": 1}, 0)
        logger.native.add_custom_scalars({"all": {"x": ["Multiline", ["x"]]}})
    assert {"x", "custom_scalars__config__"} <= {
        tag for tags in read(logger.path).Tags().values() if tags is not True for tag in tags or ()
    }


def test_names_stay_in_the_directory(make, tmp_path):
    for name, place in {"../up": "up", "/abs": "abs", "a/b/": "a/b", "a/./c": "a/c"}.items():
        with make(name=name) as logger:
            logger.log({"x": 1}, 0)
        assert logger.path == tmp_path / place
    with pytest.raises(TrackerError), make(name="none", resume="must"):
        pass
    assert not (tmp_path / "none").exists()


def test_two_at_once_have_two_directories(make, tmp_path):
    with make(name="a/b") as one, make(name="a/b") as two:
        one.log({"x": 1}, 0)
        two.log({"x": 2}, 0)
    assert (one.path, two.path) == (tmp_path / "a" / "b", tmp_path / "a" / "b-2")
    assert len(read(one.path).Scalars("x")) == len(read(two.path).Scalars("x")) == 1


def test_what_is_replayed_goes_to_the_same_directory(make, tmp_path, monkeypatch):
    def away(self):
        raise OSError("not now")

    place = tmp_path / "elsewhere"
    place.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardLogger, "connect", away)
        patch.chdir(place)
        with pytest.warns(UnsentWarning), TensorBoardLogger(name="a/b") as logger:
            logger.log({"x": 1}, 0)
    assert replay(place / "spoolax-unsent") == 1
    assert logger.path == place / "runs" / "a" / "b"
    assert len(read(logger.path).Scalars("x")) == 1


def test_steps_that_are_not_integers_are_kept(make):
    with make() as logger:
        logger.log({"x": 1}, 2.5)
    found = read(logger.path)
    assert [(event.step, event.value) for event in found.Scalars("step")] == [(2, 2.5)]


def test_what_is_written_can_be_read_while_the_run_goes_on(make):
    with make() as logger:
        logger.log({"x": 1}, 0)
        assert logger.flush()
        assert len(read(logger.path).Scalars("x")) == 1


def test_wrong_options_are_errors_before_the_run(make):
    with pytest.raises(LogTypeError, match=r"no option `nme`.*Did you mean `name`"):
        make(nme="x").__enter__()


def tags_of(path):
    loader = EventAccumulator(str(path), ALL)
    loader.Reload()
    return set(loader.Tags()["scalars"])


def test_what_is_written_by_hand_stays(make):
    with make() as logger:
        logger.log({"x": 1.0}, 0)
        logger.native.add_scalar("inside", 2.0, 0)
    logger.native.add_scalar("after", 3.0, 0)
    logger.native.close()
    assert tags_of(logger.path) == {"x", "inside", "after"}


def test_a_directory_that_is_removed_amid_a_run_is_there_again(make):
    with make(config={"lr": 1}) as logger:
        logger.log({"x": 1.0}, 0)
        assert logger.flush()
        shutil.rmtree(logger.path)
        logger.log({"y": 1.0}, 1)
    assert tags_of(logger.path) == {"y"}


def test_a_run_whose_file_cannot_be_created_leaves_nothing_of_it(make, monkeypatch):
    write, failures = io.FileIO.write, iter([True])

    class Full(io.FileIO):
        def write(self, data):
            if next(failures, False):
                write(self, data[:20])
                raise OSError("no space left")
            return write(self, data)

    opened = lambda path, mode, buffering: Full(path, mode)  # noqa: E731
    monkeypatch.setattr("spoolax.loggers.trackers._tensorboard.open", opened, raising=False)
    with make(config={"lr": 1}) as logger:
        logger.log({"x": 1.0}, 0)
    assert len(list(logger.path.iterdir())) == 1
    assert tags_of(logger.path) == {"x"}


def test_steps_that_are_not_integers_are_curves(make):
    with make() as logger:
        for i in range(1, 6):
            logger.log({"x": float(i)}, i / 2)
    found = TestTensorBoardLogger().read(logger)
    assert [step for step, _ in found] == [0, 1, 1, 2, 2]
    assert [row["step"] for _, row in found] == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_a_run_that_fails_before_it_logs_anything_leaves_no_directory(make):
    with pytest.raises(ZeroDivisionError), make() as logger:
        _ = 1 / 0
    assert not logger.path.exists()


def test_a_configuration_may_have_odd_things_in_it(make, capsys):
    config = {"text": "x\ud800", "nothing": None, "big": 2**70, "nan": np.nan, "flag": True}
    with make(config=config) as logger:
        logger.log({"x": 1.0}, 0)
    assert tags_of(logger.path) == {"x"}
    assert not capsys.readouterr().out
