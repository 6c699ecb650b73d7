"""A publish to a RabbitMQ that says nothing ends, and says that the message may be there."""

from __future__ import annotations

import time

import pytest
from kombu.exceptions import OperationalError

from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.retry.transient import is_transient
from tests.fixtures.processes import LoadProject
from tests.support.broker import Broker
from tests.support.shop import SHOP
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]

#: Seconds of each try, and of a connection's.
SHORT = {"CONF": "{'hardened_confirm_timeout': 0.5, 'broker_connection_timeout': 0.5}"}


@pytest.mark.mortal
@pytest.mark.timeout(120)
def test_a_silent_broker_ends_a_publish(load_project: LoadProject, broker: Broker) -> None:
    """The publish has a connection that worked before, and the broker is frozen: without a bound it would wait until
    it is thawed. The error is kombu's, transient, and not certain of having sent nothing; the message is there then."""
    project = load_project(SHOP, env=SHORT)
    project.fine.delay("before")
    broker.server.pause()
    began = time.monotonic()
    with pytest.raises(OperationalError, match="may have been published") as caught:
        project.fine.apply_async(("during",), task_id="it")
    assert time.monotonic() - began < 40
    assert "proj.fine[it]" in str(caught.value)
    assert "hardened_confirm_timeout" in str(caught.value)
    assert is_transient(caught.value)
    assert not nothing_was_sent(caught.value, handled=None)

    broker.server.resume()
    with project.app.connection_for_read() as connection:
        until(
            lambda: connection.default_channel.queue_declare(broker.queue, passive=True).message_count >= 2,
            within=60,
            what="the message to be there after all",
        )


@pytest.mark.mortal
def test_a_broker_that_is_away_has_nothing(load_project: LoadProject, broker: Broker) -> None:
    """No connection was made: the error is the plain one, and certain."""
    project = load_project(SHOP, env=SHORT)
    project.app.conf.broker_url = "amqp://127.0.0.1:1//"
    with pytest.raises(OperationalError) as caught:
        project.fine.delay("never")
    assert "may have been published" not in str(caught.value)
    assert nothing_was_sent(caught.value, handled=None)


def test_what_the_caller_says_goes_before(load_project: LoadProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``confirm_timeout`` of a call stays; ``None`` in the settings leaves py-amqp's endless wait."""
    given = []
    project = load_project(SHOP, env=SHORT)
    with project.app.producer_pool.acquire(block=True) as producer:
        publish = producer.publish

        def noted(*args: object, **options: object) -> object:
            given.append(options.get("confirm_timeout"))
            return publish(*args, **options)

        monkeypatch.setattr(producer, "publish", noted)
        project.fine.apply_async(("by the setting",), producer=producer)
        project.fine.apply_async(("by the call",), producer=producer, confirm_timeout=7)
    assert given == [0.5, 7]
