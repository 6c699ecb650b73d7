"""``hardened dashboard``: what Grafana imports."""

from __future__ import annotations

import json

import click

from celery_hardened.cli.exit_codes import ReportingCommand


@click.command("dashboard", cls=ReportingCommand)
@click.option("--title", help="Its title. Default: Celery, and the app's name.")
@click.option("--datasource", metavar="UID", help="The Prometheus it asks. Default: chosen on the dashboard.")
@click.option(
    "--uid", default="celery-hardened", show_default=True, help="Its id in Grafana; a second one needs another."
)
@click.pass_context
def dashboard(ctx: click.Context, title: str | None, datasource: str | None, uid: str) -> None:
    """Print a dashboard for Grafana: import it as JSON.

    Nothing is connected to.
    """
    from celery_hardened.metrics.dashboard import dashboard as made

    name = ctx.obj.app.main
    found = made(title or (f"Celery, {name}" if name else "Celery"), datasource, uid)
    click.echo(json.dumps(found, indent=1))
