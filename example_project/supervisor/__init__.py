"""Runs what ``Procfile`` names, and starts again what dies: ``python -m supervisor``, or ``./dev example``.

systemd, Kubernetes, Docker or honcho do the same in production; this one needs nothing but Python.
"""
