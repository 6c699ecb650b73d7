"""Redis delivery that loses nothing: a message is always in a queue, leased, or in a list that is swept.

Wire-compatible with kombu's own Redis transport in both directions; only how messages
are *taken* differs. ``install.py`` puts it under one app's connections.

::

    fetcher.py   one connection: fetch script → wait → fetch script
    channel.py   kombu's channel and QoS, on fetchers and leases
    poller.py    kombu's poller, with fetchers in it
    leases.py    what this process holds; one thread renews, returns, acks and sweeps
    policy.py    when a lease may be renewed, when a worker has stopped consuming
    scripts.py   the Lua steps, typed
"""
