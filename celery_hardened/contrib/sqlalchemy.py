"""Publish on commit for SQLAlchemy sessions.

::

    with publishing_on_commit(session):
        charge.delay(invoice.id)
    session.commit()  # sent now

    charge.apply_async((invoice.id,), on_commit=session)  # the same, for one call
"""

from celery_hardened.pipeline.on_commit import publishing_on_commit

__all__ = ["publishing_on_commit"]
