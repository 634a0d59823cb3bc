"""Database URLs: how they are opened and how they are written to files and messages."""

import socket
import time
from pathlib import Path

import optuna
import pytest

from hwnas.cli.output import stored_option
from hwnas.core import database
from hwnas.core.errors import ConfigError, RunError
from hwnas.models.spaces import SearchSpace
from hwnas.nas.options import StudyConfig
from hwnas.nas.shared_study import Membership, SharedStudy
from hwnas.nas.study import study_in_database

PASSWORD = "geheim"
SPECIAL_NAMES = [
    "x?1",
    "x%201",
    "a#b",
    "{x}",
    "${x}",
    "ü 'q\" [1](2)",
    "a=b&c@d:e",
    "\\",
    "~",
    "new\nline",
]


@pytest.mark.parametrize("name", SPECIAL_NAMES)
def test_sqlite_url_keeps_special_characters_of_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    optuna.storages.RDBStorage(database.sqlite_url(tmp_path / name / "s.db")).engine.dispose()
    assert [path.name for path in tmp_path.rglob("*.db")] == ["s.db"]
    assert (tmp_path / name / "s.db").is_file()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@h/db",
        "postgresql://me:a/geheim@h/db",
        "postgresql://me:p?geheim@h/db",
        "postgresql://me:{geheim}@h:5432/db",
        "postgresql://h/db?password=geheim&user=me",
        "postgresql://me@h/db?sslpassword=geheim",
        "postgresql://me:p@geheim@h/db",
        "postgresql://me:p@geheim/x@h/db",
        "postgresql://me:geheim@h:port/db",
    ],
)
def test_passwords_are_not_written(url: str) -> None:
    arguments = [f"study.storage='{url}'", f'study.storage="{url}"', f"study.storage={url}"]
    written = [*database.redact_arguments(arguments), str(database.redact_config({"a": [url]}))]
    try:
        StudyConfig(storage=url)
    except ConfigError as error:
        written.append(str(error))
    assert not any(PASSWORD in text for text in written)


def test_text_without_password_is_unchanged() -> None:
    arguments = [
        "a=b",
        "dataset.path=hf://me/x",
        "study.storage=postgresql://me@h/db?sslmode=require",
    ]
    assert database.redact_arguments(arguments) == arguments


def test_error_for_at_sign_in_password_names_the_fix() -> None:
    with pytest.raises(ConfigError, match="@ of a password as %40"):
        StudyConfig(storage="postgresql://me:p@x@h/db")
    assert StudyConfig(storage="postgresql://me:p%40x@h/db").storage is not None


@pytest.mark.slow
def test_silent_database_times_out(tiny: SearchSpace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://me@127.0.0.1:{server.getsockname()[1]}/x"
        start = time.monotonic()
        config = StudyConfig(storage=url, reconnect_timeout_s=2)
        with pytest.raises(RunError, match=r"does not answer.*No finished trial is lost"):
            SharedStudy(Membership(config, url, "s", ("accuracy", "latency_ms"), {}), tiny)
        assert time.monotonic() - start < 20
        assert "connect_timeout" in str(study_in_database(url, "s", url).engine)


def test_suggested_command_omits_database_password() -> None:
    assert stored_option(None) == ""
    assert stored_option("postgresql://me:pw@h/db") == " study.storage=postgresql://me@h/db"
