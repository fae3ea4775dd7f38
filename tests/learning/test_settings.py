"""Settings: defaults, file, flags; types checked and unknown keys refused with a suggestion."""

import pytest

from canal.errors import ConfigurationError, InvalidValueError
from canal.learning.settings import Settings, TrainingSettings, read_settings


def written(tmp_path, text):
    path = tmp_path / "canal.toml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file_which_wins_over_defaults(tmp_path):
    path = written(tmp_path, "[training]\nsteps = 7\nseed = 3\nlearning_rate = 1\n")
    got = read_settings(path, {"seed": 5, "size": None}).training
    assert (got.steps, got.seed, got.learning_rate) == (7, 5, 1.0)
    assert got.batch_size == TrainingSettings().batch_size


def test_round_trip(tmp_path):
    settings = read_settings(None, {"norm": "instance", "augment": False, "learning_rate": 0.25})
    assert read_settings(written(tmp_path, settings.to_toml())) == settings
    assert settings != Settings()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[trainig]\nsteps = 1", "did you mean training"),
        ("[training]\nstepz = 1", "did you mean steps"),
        ("[training]\nqqq = 1", "known are steps"),
        ('[training]\nsteps = "many"', "must be int"),
        ("[training]\nsteps = true", "must be int"),
        ("[training]\nsteps = 1.5", "must be int"),
        ('[model]\nnorm = "batch"', "instance or group"),
        ("training = 3", "must be a section"),
        ("[training\n", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, word):
    with pytest.raises(ConfigurationError, match=word):
        read_settings(written(tmp_path, text))


def test_absent_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_settings(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"deform": -0.1},
        {"deform": 1.6},
        {"deform": float("nan")},
    ],
)
def test_out_of_range(values):
    with pytest.raises(InvalidValueError):
        read_settings(None, values)
