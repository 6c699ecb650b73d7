from __future__ import annotations

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_hardened import (
    ConfigurationError,
    DeadLetterNotFoundError,
    EnvelopeError,
    HardenedError,
    Query,
    RedriveRefusedError,
    StoreUnavailableError,
)
from celery_hardened.cli import connect
from celery_hardened.cli.exit_codes import code_of
from tests.support.cli import call, make_app, make_letter, store_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HardenedError("x"), 1),
        (EnvelopeError("x"), 1),
        (RedriveRefusedError("id", "x"), 1),
        (OperationalError("x"), 1),
        (ConfigurationError("x"), 2),
        (DeadLetterNotFoundError("id"), 3),
        (StoreUnavailableError("reading", "x"), 4),
    ],
)
def test_each_error_has_its_code(error: HardenedError | OperationalError, code: int) -> None:
    """A script can tell what kind of thing went wrong."""
    assert code_of(error) == code


def test_an_app_that_is_not_hardened_is_told_so() -> None:
    """One sentence with what to do, exit code 2, whatever the command."""
    app = Celery("plain", broker="memory://", set_as_current=False)
    for command in (["dlq", "stats"], ["dlq", "list"], ["switch", "list"]):
        result = call(app, *command)
        assert result.exit_code == 2
        assert "harden(app)" in result.stderr
        assert "Traceback" not in result.output


def test_a_wrong_setting_is_exit_code_2() -> None:
    """A typo in the app's configuration is named, not thrown."""
    result = call(make_app(hardened_max_retrys=3), "dlq", "stats")
    assert result.exit_code == 2
    assert "hardened_max_retries" in result.stderr


def _failing(times: int, calls: list[int]) -> object:
    def stats() -> object:
        calls.append(1)
        if len(calls) <= times:
            raise StoreUnavailableError("counting dead letters", "ConnectionError: redis://:s3cret@host refused")
        return original()

    app = make_app()
    original = store_of(app).stats
    store_of(app).stats = stats  # type: ignore[method-assign]
    return app


def test_the_first_word_with_the_store_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection after a restart may fail; nobody has to type the command twice."""
    monkeypatch.setattr(connect, "_PAUSE", 0.0)
    calls: list[int] = []
    assert call(_failing(1, calls), "dlq", "stats").exit_code == 0  # type: ignore[arg-type]
    assert len(calls) == 2


def test_a_store_that_does_not_answer_is_exit_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures are the truth; the sentence says what to check and keeps passwords to itself."""
    monkeypatch.setattr(connect, "_PAUSE", 0.0)
    calls: list[int] = []
    result = call(_failing(9, calls), "dlq", "stats")  # type: ignore[arg-type]
    assert result.exit_code == 4
    assert len(calls) == 2
    assert "hardened_redis_url" in result.stderr
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    "args",
    [
        ["dlq", "list", "--reason", "boredom"],
        ["dlq", "list", "--since", "yesterday"],
        ["dlq", "list", "--limit", "0"],
        ["dlq", "show"],
        ["dlq", "nonsense"],
        ["--nonsense"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    """click's own refusals keep click's own code."""
    assert call(make_app(), *args).exit_code == 2


def test_a_misspelt_command_is_answered_with_the_right_one() -> None:
    """``redriev`` finds ``redrive``."""
    assert "redrive" in call(make_app(), "dlq", "redriev").stderr


def test_ctrl_c_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the store is asked is exit code 130, not a traceback."""
    app = make_app()
    store_of(app).put(make_letter())

    def interrupted(query: Query, **_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_of(app), "find", interrupted)
    result = call(app, "dlq", "list")
    assert result.exit_code == 130
    assert "stopped" in result.stderr


def test_options_an_app_adds_to_every_command_reach_the_app() -> None:
    """Preload options (``user_options["preload"]``) do not break the group, on Celery 5.6 and 5.7."""
    import click
    from celery.signals import user_preload_options

    from celery_hardened.cli import hardened

    app = make_app()
    option = click.Option(["--tenant"])
    app.user_options["preload"].add(option)
    received: list[object] = []

    def receive(options: dict[str, object], **_: object) -> None:
        received.append(options["tenant"])

    user_preload_options.connect(receive)
    hardened.params.append(option)
    try:
        assert call(app, "--tenant", "acme", "dlq", "stats").exit_code == 0
    finally:
        hardened.params.remove(option)
        user_preload_options.disconnect(receive)
    assert received == ["acme"]
