"""Redis delivery that loses nothing: a message is always in a queue, leased, or in a list that is swept.

Wire-compatible with kombu's own Redis transport in both directions; only how messages
are *taken* differs. ``install.py`` puts it under one app's connections.

::

    fetcher.py   one connection: fetch script → wait → fetch script
    channel.py   kombu's channel, on fetchers and leases; qos.py what it has delivered
    poller.py    kombu's poller, with fetchers in it
    leases.py    what this process holds
    keeper.py    the thread that renews, sweeps, and does later what failed; watch.py its last chore
    delivery.py  what all channels of an app share in a process
    policy.py    when a lease may be renewed, when a worker has stopped consuming
    scripts.py   the Lua steps, typed
"""
