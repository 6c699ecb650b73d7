"""What the demo's numbers look like at this moment, on one page in a browser.

::

    workers, beats   their own /metrics and probes ┐
    broker           its queues                    ├ look ── numbers ── render ── the page
    dead letters     the store                     ┘
"""
