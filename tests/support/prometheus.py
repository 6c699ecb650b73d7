"""A real Prometheus, and questions to it."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.proc import Proc
from tests.support.until import until


class Prometheus(Proc):
    """
    One server with a data directory of its own, that scrapes and evaluates each second.

    Args:
        directory: Made, for its configuration and data.
        targets: By job, addresses and label ``namespace``; they need not be there yet.
        rules: Texts of rule files.
        paths: By job, where its metrics are, if not at ``/metrics``.
    """

    def __init__(
        self,
        directory: Path,
        targets: Mapping[str, Sequence[str]],
        rules: Sequence[str] = (),
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        directory.mkdir(parents=True)
        files = [directory / f"rules-{number}.yml" for number in range(len(rules))]
        for path, text in zip(files, rules, strict=True):
            path.write_text(text)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in files],
            "scrape_configs": [
                {
                    "job_name": job,
                    "metrics_path": (paths or {}).get(job, "/metrics"),
                    "static_configs": [{"targets": list(addresses), "labels": {"namespace": "prod"}}],
                }
                for job, addresses in targets.items()
            ],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        words = [
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        super().__init__("prometheus", ["prometheus", *words], cwd=directory)

    @staticmethod
    def available() -> bool:
        return shutil.which("prometheus") is not None

    def wait_ready(self) -> None:
        until(lambda: self._get("/-/ready"), within=60, what="Prometheus to be ready")

    def query(self, expr: str) -> list[dict[str, Any]]:
        """What *expr* gives now."""
        found: list[dict[str, Any]] = self._ask("query", query=expr)["result"]
        return found

    def over(self, expr: str, *, since: float, now: float) -> list[dict[str, Any]]:
        """What *expr* gave from *since* on, second by second."""
        found: list[dict[str, Any]] = self._ask("query_range", query=expr, start=since, end=now, step="1s")["result"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"}

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that are pending or fire, with labels and annotations."""
        found: list[dict[str, Any]] = self._ask("alerts")["alerts"]
        return found

    def fired(self, *, since: float, now: float) -> set[str]:
        """Names of the alerts that have fired since then."""
        found = self.over('count by (alertname) (ALERTS{alertstate="firing"})', since=since, now=now)
        return {series["metric"]["alertname"] for series in found}

    def targets(self) -> dict[str, str]:
        """By address, how its last scrape went."""
        return {one["labels"]["instance"]: one["health"] for one in self._ask("targets")["activeTargets"]}

    def _ask(self, path: str, **params: Any) -> Any:
        answer = json.loads(self._get(f"/api/v1/{path}?{urllib.parse.urlencode(params)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
