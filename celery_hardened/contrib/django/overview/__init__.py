"""The overview in the admin: how queues, workers, beats and dead letters are, what is wrong, and what to do.

::

    read.py      asks the broker, Redis, the store of dead letters and the tables, each in a thread of its own
    watch.py     has that done once for all pages of a process, and waits for nobody longer than a second
    problems.py  what of it is wrong, in the words of the alerts; pure
    shown.py     all of it as the page has it
"""
