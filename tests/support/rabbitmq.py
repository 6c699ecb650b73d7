"""A private RabbitMQ node: own Erlang name service, cookie, files and ports."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.ports import free_port
from tests.support.proc import Proc

#: The programs below the package's own folder. Those on PATH are wrappers that
#: change the user and know fixed paths.
BINARIES = Path(os.environ.get("RABBITMQ_BIN_DIR", "/usr/lib/rabbitmq/bin"))

_CONFIGURATION = """\
log.console = true
log.console.level = info
log.file = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
management.tcp.ip = 127.0.0.1
management.tcp.port = {http_port}
management_agent.disable_metrics_collector = true
"""


class RabbitMQ:
    """One node, restartable. Its HTTP interface makes and removes virtual hosts."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port, self.http_port = free_port(), free_port()
        self.node = f"t{self.port}@localhost"
        home = directory / "home"
        home.mkdir(exist_ok=True)
        cookie = home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (directory / "rabbitmq.conf").write_text(_CONFIGURATION.format(http_port=self.http_port))
        environment = {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_USE_LONGNAME": "false",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_BASE": str(directory),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            # Have the launcher become the node, not watch over it: signals then
            # reach the node, and it dies with us.
            "RUNNING_UNDER_SYSTEMD": "true",
            # Idle schedulers that spin would take the cores from the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2",
        }
        # The name service is a child of ours; the node would leave a daemon behind.
        names = ["epmd", "-port", environment["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
        self._names = Proc("epmd", names, cwd=directory, env=environment)
        self.process = Proc("rabbitmq", [str(BINARIES / "rabbitmq-server")], cwd=directory, env=environment)

    @staticmethod
    def available() -> bool:
        """Whether the server is installed."""
        return (BINARIES / "rabbitmq-server").exists()

    def url(self, vhost: str = "/") -> str:
        """``amqp://`` URL of a virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def start(self) -> RabbitMQ:
        """Start the node and wait until it serves; durable queues of an earlier start are there."""
        if not self._names.running:
            self._names.start()
        seen = len(self.process.log())
        self.process.start()
        self.process.wait_for_log("Server startup complete", within=90, since=seen)
        return self

    @property
    def running(self) -> bool:
        """Whether the node is there."""
        return self.process.running

    def log(self) -> str:
        """All the node has written, over all its starts."""
        return self.process.log()

    def pause(self) -> None:
        """Freeze it: connections stay, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Let a frozen node go on."""
        self.process.resume()

    def kill(self) -> None:
        """End the node at once, as a power cut would."""
        self.process.kill_group()

    def stop(self) -> None:
        """End the node in good order."""
        self.process.stop(within=30)

    def destroy(self) -> None:
        """End the node and its name service; nothing is left running."""
        self.kill()
        self._names.kill_group()

    # --- its HTTP interface -----------------------------------------------------------------

    def add_vhost(self, name: str) -> str:
        """Make a virtual host and return its URL."""
        self.call("PUT", f"vhosts/{quote(name, safe='')}")
        return self.url(name)

    def remove_vhost(self, name: str) -> None:
        """Remove a virtual host, with its queues and connections."""
        self.call("DELETE", f"vhosts/{quote(name, safe='')}")

    def queue(self, vhost: str, name: str) -> dict[str, Any]:
        """A queue as the broker sees it: ``type``, ``arguments``, ``durable`` and so on."""
        found: dict[str, Any] = self.call("GET", f"queues/{quote(vhost, safe='')}/{quote(name, safe='')}")
        return found

    def call(self, method: str, path: str, body: object = None) -> Any:
        """
        Call the HTTP interface below ``/api/`` and return the decoded answer.

        Raises:
            AssertionError: The broker refused.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request(
                method,
                f"/api/{path}",
                body=json.dumps(body) if body is not None else None,
                headers={
                    "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
                    "Content-Type": "application/json",
                },
            )
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status < 400, f"{method} {path}: {answer.status} {text!r}"
        return json.loads(text) if text else None
